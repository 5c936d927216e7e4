"""Runs that an earlier call of a script left: for scripts that do not make them again."""

import json
import sys


def require_same_settings(folder, settings):
    """Ends the script if the folder has runs of other settings, a dictionary, or of unknown ones; notes these where it has none."""
    text = json.dumps(settings, sort_keys=True)
    file = folder / "settings.json"
    if not file.exists() and any(folder.glob("*/options.ini")):
        sys.exit(f"{folder} has runs that do not say with which settings they were made. Choose another --out")
    if file.exists() and file.read_text() != text:
        sys.exit(f"{folder} has runs with other settings: {file.read_text()}; now: {text}. Choose another --out")
    file.write_text(text)


def objects_in(file):
    """Objects of a file of JSON lines, which end with \\n alone: texts in them may have other line ends of Unicode."""
    with file.open(encoding="utf-8", newline="\n") as lines:
        return [json.loads(line) for line in lines]


def events_of(run, kind):
    """Lines of a run's metrics that are of a kind, "step", "evaluation" or "result"."""
    return [event for event in objects_in(run / "metrics.jsonl") if event["event"] == kind]
