"""Makes data/recorded/tiny.jsonl: the sweep that chapter 10 draws from.

    .venv/bin/python data/make_recorded.py

Takes some minutes; if it is stopped, the next start goes on where it was. To measure
anew, delete the file first. Nothing else should run on the machine meanwhile.
"""
from nds_helpers.distributed import Workers
from nds_helpers.lab import sweep, watch
from nds_helpers.models import load_pair


def main():
    """Starts the ranks, sweeps, and tells how far it is."""
    settings = sweep.grid()
    teams = {n: Workers(n) for n in sorted({setting.ranks for setting in settings})}
    for workers in teams.values():
        workers.run(watch.load)
    sweep.run(settings, sweep.SHIPPED, teams, load_pair("tiny"),
              lambda done, total: print(f"\r{done} of {total}", end="", flush=True))
    print(f"\n{sweep.SHIPPED.relative_to(sweep.DATA.parent)} is complete.")


if __name__ == "__main__":
    main()
