"""Label a room with a trained `cloud` network, at full density and at a tenth of it, and draw the result.

pinchpoint cloud data -o rooms
pinchpoint cloud train rooms -o run
python examples/label_cloud.py run rooms -o labels.png
"""

import argparse

import matplotlib
import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from pinchpoint.systems.cloud.data.dataset import open_dataset
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.model.model import predict_labels
from pinchpoint.systems.cloud.training.runs import trained

COLOURS = ["#e3d9c6", "#17202b", "#c3ccd6", "#ee9b24", "#1563ba", "#089870", "#e7c500", "#b3261e"]


def look_inside(scene: Scene, classes: tuple[str, ...]) -> np.ndarray:
    """Return which points to draw, (N,): not the ceiling, nor the walls between the room and the viewer."""
    names = np.array(classes)[scene.labels]
    depth = scene.xyz[:, 0] + scene.xyz[:, 1]
    near = depth < (depth.min() + depth.max()) / 2
    below = scene.xyz[:, 2] < scene.xyz[:, 2].max() - 0.1
    return below & (names != "ceiling") & ~((names == "wall") & near)


def draw(axes: Axes, scene: Scene, labels: np.ndarray, *, title: str, size: float) -> None:
    """Draw points seen from above a corner, the farthest first."""
    keep = look_inside(scene, data.classes)
    x, y, z = scene.xyz[keep].T
    order = np.argsort(-(x + y) + 0.6 * z)
    paint = np.array(COLOURS)[labels[keep]][order]
    axes.scatter((x - y)[order], (0.5 * (x + y) + 0.9 * z)[order], c=paint, s=size, linewidths=0)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_title(title, fontsize=10)


parser = argparse.ArgumentParser(description="Draw the predicted labels of a test room.")
parser.add_argument("run", help="folder of the run")
parser.add_argument("rooms", help="folder of the data set")
parser.add_argument("--room", type=int, default=0, help="number of the test room (default 0)")
parser.add_argument("-o", "--output", default="labels.png")
options = parser.parse_args()

data = open_dataset(options.rooms)
full = data.scene(data.names("test")[options.room])
assert full.labels is not None  # generated rooms are labelled
tenth = full.take(np.random.default_rng(0).permutation(full.points)[: full.points // 10])
model = trained(options.run).model

matplotlib.use("agg")
figure, panels = pyplot.subplots(1, 3, figsize=(11, 4), layout="constrained")
draw(panels[0], full, full.labels, title=f"true labels, {full.points:,} points", size=6)
for axes, scene, size in ((panels[1], full, 6), (panels[2], tenth, 20)):
    labels = predict_labels(model, scene)
    right = np.mean(labels == scene.labels)
    draw(axes, scene, labels, title=f"predicted from {scene.points:,} points, {right:.0%} correct", size=size)
marks = [Line2D([], [], marker="o", linestyle="", color=colour) for colour in COLOURS]
figure.legend(marks, data.classes, loc="outside lower center", ncols=len(COLOURS), frameon=False, fontsize=9)
figure.savefig(options.output, dpi=130)
