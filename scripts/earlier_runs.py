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


def events_of(run, kind):
    """Lines of a run's metrics that are of a kind, "step", "evaluation" or "result"."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").open(encoding="utf-8", newline="\n")]
    return [event for event in events if event["event"] == kind]
