"""Models out of a run: safetensors and ONNX files, and predictions with them."""
