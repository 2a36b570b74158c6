/*
 * Opens a handout: unpacks the style, the answers and the script of the page, in this order. Written
 * for any browser, since an old one must be told why nothing opens.
 */
(function () {
  var root = document.getElementById("telescope");
  function say(text) {
    root.textContent = text;
  }
  if (!("noModule" in document.createElement("script")) || typeof DecompressionStream !== "function") {
    say(
      "This browser is too old for this handout: it needs Chrome or Edge 103, Firefox 113, Safari " +
        "16.4, or a later one.",
    );
    return;
  }
  function unpack(name) {
    var packed = atob(document.getElementById("telescope-" + name).textContent.trim());
    var bytes = new Uint8Array(packed.length);
    for (var at = 0; at < packed.length; at += 1) bytes[at] = packed.charCodeAt(at);
    var unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(unpacked).text();
  }
  Promise.all(["style", "answers", "script"].map(unpack)).then(
    function (texts) {
      var style = document.createElement("style");
      style.textContent = texts[0];
      document.head.append(style);
      document.getElementById("telescope-answers").textContent = texts[1];
      root.textContent = "";
      var script = document.createElement("script");
      script.type = "module";
      script.textContent = texts[2];
      document.body.append(script);
    },
    function () {
      say("This handout is damaged: ask for the file again.");
    },
  );
})();
