"""Models in files: loaded, saved, imported from Hugging Face and exported to it. Safetensors and JSON, never pickle."""
