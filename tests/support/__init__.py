"""What several tests share: models, texts, drawn definitions, servers, browsers."""
