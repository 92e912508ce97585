"""``torch.compile`` for tpu tensors: Dynamo and AOTAutograd make graphs, the engine one program of each.

Nothing here is imported before something is compiled.
"""
