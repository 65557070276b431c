"""Times train steps on jax's default device, a GPU if there is one: Session.run against plain jax.jit.

    PYTHONPATH=. python benchmarks/gpu_steps.py

Prints one line of JSON per model. Needs only what penstock's engine needs: jax, numpy, tensorboard, absl.
"""

from __future__ import annotations

import argparse
import json

import jax
from steps import best_times, check_same_loss, cnn, mlp


def main() -> None:
    """Measures both models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="how many rounds to take the best of")
    parser.add_argument("--count", type=int, default=200, help="steps of a round (a tenth of it for the CNN on a CPU)")
    options = parser.parse_args()
    device = jax.devices()[0]
    for name, make in (("mlp", mlp), ("cnn", cnn)):
        pair = make()
        # By default a GPU multiplies float32 in TF32, and the two forms may round differently there.
        check_same_loss(pair, tolerance=1e-3 if device.platform == "cpu" else 2e-2)
        count = max(1, options.count // 10) if name == "cnn" and device.platform == "cpu" else options.count
        times = best_times(pair._asdict(), count, options.rounds)
        print(
            json.dumps(
                {
                    "model": name,
                    "device": device.device_kind,
                    "penstock_us": round(times["penstock"] * 1e6, 1),
                    "jax_us": round(times["jax"] * 1e6, 1),
                    "ratio": round(times["penstock"] / times["jax"], 3),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
