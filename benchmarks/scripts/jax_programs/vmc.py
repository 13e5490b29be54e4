"""pinchpoint's own wave function of LiH, trained with Adam: `python vmc.py --steps 10`."""

import argparse

import jax

from pinchpoint.systems.vmc import WORKLOAD


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--walkers", type=int, default=4096)
    args = parser.parse_args()
    device = "cuda" if jax.devices()[0].platform == "gpu" else "cpu"
    case = WORKLOAD.case(
        args.walkers, device=device, mode="train", variant="forward", settings={"system": "LiH"}
    )
    params, state, walkers = case.args
    for step in range(args.steps):
        params, state, energy = case.step(params, state, walkers)
        if step % 5 == 0:
            print(step, float(energy))


if __name__ == "__main__":
    main()
