"""``torch.compile`` for tpu tensors: Dynamo and AOTAutograd make graphs, the engine programs.

Nothing here is imported before something is compiled.
"""
