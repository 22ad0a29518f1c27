# SPDX-License-Identifier: Apache-2.0
"""A heat solver trains a model while it runs; the prediction is plotted beside the solution: docs/python.md."""
import matplotlib.pyplot as plt
import meshgrad
import numpy as np

side = 9
x, y = (axis.ravel() for axis in np.meshgrid(np.linspace(0, 1, side), np.linspace(0, 1, side)))
at = np.arange(side * side, dtype=np.int32).reshape(side, side)
quads = np.stack([at[:-1, :-1], at[:-1, 1:], at[1:, 1:], at[1:, :-1]], axis=-1).reshape(-1, 4)
edge = np.isin(x, [0, 1]) | np.isin(y, [0, 1])
mesh = meshgrad.Mesh(np.stack([x, y], axis=1), quads, node_type=edge.astype(np.int32))  # type 1 keeps its values
config = """data = {inputs = ["u"], targets = ["u"], node_types = 2, predicted_types = [0], noise_types = [0]}
            model = {width = 32, blocks = 3}
            train = {steps = 3000, noise = 1e-4}
            optimizer.lr = 2e-3"""

def solution(a, b, steps):
    u = (a * np.sin(np.pi * x) + b * np.sin(2 * np.pi * x)) * np.sin(np.pi * y) * ~edge
    for _ in range(steps + 1):
        yield u
        u = u + 0.1 * (np.roll(u, 1) + np.roll(u, -1) + np.roll(u, side) + np.roll(u, -side) - 4 * u) * ~edge

with meshgrad.Trainer(config, [meshgrad.Field("u")]) as trainer:
    trainer.set_mesh(mesh)
    for run in range(10):
        trainer.restart_trajectory()
        for u in solution(1 - 0.1 * run, 0.2 * run - 1, steps=29):
            trainer.set_field("u", u)
            trainer.append()
            trainer.train(10)
    trainer.save("heat.safetensors")
*_, truth = solution(0.55, -0.1, steps=10)
with meshgrad.Predictor("heat.safetensors") as predictor:
    predictor.set_mesh(mesh)
    predictor.set_field("u", next(solution(0.55, -0.1, steps=0)))
    predictor.predict(10)
    predicted = predictor.get_field("u")
print(f"relative error after 10 predicted steps: {np.linalg.norm(predicted - truth) / np.linalg.norm(truth):.3f}")
for axes, u in zip(plt.subplots(1, 2, figsize=(8, 4))[1], (predicted, truth)):
    axes.tricontourf(x, y, u, levels=np.linspace(-0.05, 0.5, 12))
plt.savefig("heat.png")
