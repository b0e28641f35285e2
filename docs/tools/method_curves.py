"""Run each method on scikit-learn's digits, and record its accuracies for the curves of the methods' pages.

    python docs/tools/method_curves.py --output-dir FOLDER --commit HASH

Finished runs in the folder are not repeated. ``method_pages.py`` draws the curves from the record.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import run_records
from method_pages import CURVES

import fedpfl
from fedpfl.methods import methods
from fedpfl.methods.adapted import AdapterMethod

REFERENCES = ("fedavg", "local")
SETTINGS = {"dataset": "digits", "model": "mlp", "num_server_rounds": 10, "seed": 1}
# Two factors that train together need smaller steps: with 0.02 the training of adapters diverges.
RATES = {"all": 0.02, "lora": 0.005}


def curve(method: str, trainable: str, folder: Path) -> list[float]:
    """Return the personalised accuracy of each round, in percent."""
    name = f"{method}-{trainable}"
    if (folder / name / "summary.md").is_file():
        run = fedpfl.load(folder / name)
    else:
        own = {"trainable": trainable, "learning_rate": RATES[trainable], "output_dir": folder, "run_name": name}
        run = fedpfl.run(method=method, workers=0, quiet=True, **own, **SETTINGS)
    print(run)
    return [round(100 * value, 1) for value in run.rounds["personalised_accuracy"]]


def main() -> None:
    """Run all methods, those of adapters with adapters, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output-dir", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--commit", required=True, help="commit of the code that runs")
    options = parser.parse_args()
    values = {}
    for trainable in ("all", "lora"):
        references = {name: curve(name, trainable, options.output_dir) for name in REFERENCES}
        for name, method in methods().items():
            if issubclass(method, AdapterMethod) == (trainable == "lora"):
                own = references[name] if name in REFERENCES else curve(name, trainable, options.output_dir)
                values[name] = {name: own, **references}
    command = "python docs/tools/method_curves.py --output-dir FOLDER --commit HASH"
    record = {"command": command, "commit": options.commit, "values": values, **run_records.machine()}
    print(run_records.write(f"figures/{CURVES}", record))


if __name__ == "__main__":
    main()
