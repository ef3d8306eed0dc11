"""HTTP, text and token ids; everything below is behind `engine.EngineClient`."""
