"""What can be asked of the explorer, and what it answers. HTTP, a notebook and an exported file ask in the same words.

Everything below stands under /api/v1. Numbers that JSON does not have are the strings "-inf", "inf" and "nan".
Every number is in float64 of what was recorded, with all its digits, except for tiles and tracks, which are pictures.

    l   the number of an attention in the run's list `attentions`        h   a head, by its number in the model
    b   a sequence of the batch, 0 unless given                          i, j   a query and a key, from 0

GET  /models                    {"models": ["translator-en-de"], "default": "translator-en-de" | null, "longest": 4096}
GET  /runs                      {"runs": [RUN, …]}, the latest first
POST /runs                      {"text": "…", "model": "…"?, "target": "…"?} → 201 RUN. `target` is what a translator is
                                made to write; without it, what it writes by itself
GET  /runs/{run}                RUN = {"run": "r1", "rev": "…", "kind": "sentence" | "recording", "title": "…",
                                "model": "…", "text": "…" | null, "written": "…" | null, "keep": "steps",
                                "attentions": [{"l": 0, "name": "encoder.0.self", "kind": "encoder" | "decoder" |
                                "cross" | "self", "heads": [0, 1, 2, 3], "batch": 1, "n_q": 9, "n_k": 9, "d_k": 16,
                                "d_v": 16 | null, "formula": "softmax(mask(q·k / √16)) v", "mask": "causal",
                                "has": {"trace": true, "context": true, "map": true, "geometry": true,
                                "alignment": true, "tokens": true}}, …]}
                                what is not `has` would answer 409, and `why` says so: {"why": {"map": "…"}}
GET  /runs/{run}/tokens         ?l&axis=q|k&start&stop&b (at most 4,096)
                                {"l", "axis", "start", "stop", "n": 9, "tokens": ["The", "·s", …], "words": [0, 0, …] |
                                null, "names": ["Thes", …] | null}: `words` numbers the word of each token, counted
                                over the whole axis, `names` are those that begin in the range, from words[0] on.
                                A token without a text is its number as text. Of "cross", q is the token that is
                                written by the look.
GET  /runs/{run}/trace          ?l&h&i&b   one query, every step
                                {"l", "h", "i", "b", "token": "saw", "n_k": 9, "keys": [0, 1, …], "tokens": ["The", …],
                                "formula": "softmax(q·k / √16) v", "score": "q·k", "scale": 0.25,
                                "stream": {"before": [d_model], "after": [d_model]} | null,
                                "query": [d_q], "key": [[d_k], …], "value": [[d_v], …] | null,
                                "factors": {"query": [m], "key": [[m], …]} | null,  their products are `terms`
                                "terms": [[m], …],                                  which sum to the scores
                                "steps": [{"name": "scores", "formula": "q·k", "numbers": [key]}, {"name": "scaled", …},
                                "capped", "biased", "masked", "weights"], only those that this definition has,
                                "lse": 3.2 | null, "sink": 0.5 | null, "context": [d_v] | null,
                                "rest": {"keys": 0, "weight": 0.0, "context": [d_v] | null}}
                                All keys where there are at most 512; else the 64 with the largest weights, by place,
                                and all others together are the `rest`. context = Σ weight · value + rest.context.
GET  /runs/{run}/heads          ?l&b   {"l", "rows": 9, "columns": 9, "exact": true, "samples": 9, "maps": [{"h": 0,
                                "share": [[…]]}, …], "habits": [{"h": 0, "kind": "previous", "itself": 0.1, …,
                                "spread": 3.1}, …] | null}: matrices of at most 48 x 48, pooled where there are more
                                tokens; habits null where they would take a pass over all of a long text
GET  /runs/{run}/geometry       ?l&b&start&stop (at most 512 tokens)
                                {"l", "start", "stop", "n", "tokens": […], "before": [[x, y], …], "after": [[x, y], …],
                                "explained": [0.41, 0.22], "moved": [cos(before, after), …],
                                "cosines": {"before": [[…]], "after": [[…]]} | null (of at most 64 tokens)}
GET  /runs/{run}/alignment      ?l&h=3|mean&b   between words where they are known, otherwise tokens; at most 512
                                {"l", "h", "rows": ["Der", …], "columns": ["The", …], "weights": [[…]],
                                "real_rows": [0, 1, …], "real_columns": […]}: the real ones are words of the text
GET  /runs/{run}/cell           ?l&h&i&j&b   {"l", "h", "i", "j", "b", "query": "saw", "key": "man", "visible": true,
                                "dot", "scaled", "capped", "biased", "masked", "lse": … | null, "p"}
GET  /runs/{run}/map            ?l&h&b   {"l", "h", "n_q", "n_k", "tile": 256, "max_zoom": 9, "aggs": ["share", "max"],
                                "value": "log2", "dtype": "f16", "known": 0.25, "top": [{"i", "j", "p"}, …] (at most 20,
                                of the rows that are known; the text alternative)}
                                `known` is the share of rows whose sum is known: where it grows, sampled tiles that are
                                asked for once more come back with more samples, or exact
GET  /runs/{run}/tiles/{z}/{x}/{y}   ?l&h&agg=share|max&fmt=f16|u8&b   256 x 256 numbers, row by row, a row is a query.
                                f16: little-endian log2 of the weight; -inf is masked, NaN outside of the matrix.
                                u8: 0 outside, 1 masked, v ≥ 2 is log2 = (v - 255) / 8
                                X-Exact: 0 | 1, X-Samples: rows that were looked at of each pixel's, Server-Timing.
                                Level z has 2^(max_zoom - z) queries and keys in a pixel; x counts keys, y queries.
GET  /runs/{run}/tracks/{z}/{x}      ?l&h&kind=entropy|received&b   256 float32, little-endian; NaN outside. Entropy in
                                nats, the mean of a pixel's queries; received is the share of all weight that falls
                                on a pixel's keys. X-Exact and X-Samples as above.
GET  /runs/{run}/export         ?l&h&i&b&format=html|json   a file with everything about one head of a short run.
                                json: {"version": 1, "start": "/s/r1/walk?…", "answers": {"/runs/r1": RUN,
                                "/runs/r1/trace?h=0&i=0&l=0": …, "/runs/r1/tiles/0/0/0?agg=share&h=0&l=0":
                                {"base64": "…", "exact": 1, "samples": 1}}}: paths without /api/v1, parameters sorted,
                                those left out that have their usual value

Errors are {"error": {"code": "unknown-run", "message": "one sentence"}}:
    400 bad-parameter, bad-json     401 no-token     403 bad-host, bad-origin     404 unknown-run, unknown, no-tile
    405 method     409 not-kept     413 too-large    415 not-json     422 text     503 busy (with Retry-After)
"""
