"""Further places for the figures of a run: TensorBoard, W&B and MLflow, each a view of its metrics.jsonl."""
