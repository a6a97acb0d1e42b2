# The commands of the course. A target that needs the environment builds it first.

RUN := .venv/bin/python
BUILT := .venv/built

# The first Python of these that is 3.11 or newer. Another one:
# make env PYTHON=/path/to/python
RECENT := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(or $(firstword $(foreach name,python3.11 python3 python3.12 python3.13,\
	$(shell $(name) $(RECENT) 2>/dev/null && echo $(name)))),python3)

# Where pip also looks for wheels, such as the CPU-only ones of PyTorch (README).
TORCH_INDEX ?=
INSTALL = -m pip install --disable-pip-version-check \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --editable '.[dev,grading]'

# JupyterLab reads its defaults here; ours keep its question about news off the page.
SETTINGS = .venv/share/jupyter/lab/settings

# Where `make grade` writes its table.
OUT ?= marks.csv

# Each target first says what it does, in the words of `make help`.
say = @sed -n 's/ ([A-Z][A-Z].*//; s/^$@:.*\#\# /make $@: /p' Makefile
need_python = @$(PYTHON) $(RECENT) 2>/dev/null || { echo "This course needs\
	Python 3.11 or newer, and $(PYTHON) is older or missing: install one, or name it\
	with make env PYTHON=/path/to/python." >&2; exit 1; }

.PHONY: help env lab test notebooks grade precheck bench llmbench recorded smollm2 data pins \
	clean

help: ## list the targets (the default)
	@echo "Usage: make TARGET [ARGS=\"...\"]"
	@sed -n 's/^\([a-z0-9]*\):.*## /  \1\t/p' Makefile | expand -t 14

env: $(BUILT) ## build .venv, or bring it up to date
	@echo "make env: .venv is up to date."

$(BUILT): pyproject.toml constraints.txt
	$(need_python)
	@echo "Installing the course into .venv; the first time takes some minutes."
	@$(PYTHON) -m venv .venv
	@$(RUN) $(INSTALL) --constraint constraints.txt
	@touch $@

lab: $(BUILT) ## open JupyterLab and print its address; Ctrl-C twice ends it
	$(say)
	@mkdir -p $(SETTINGS)
	@echo '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}' \
		> $(SETTINGS)/overrides.json
	@$(RUN) -m jupyterlab --ServerApp.root_dir="$(CURDIR)" \
		--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb \
		--LabApp.news_url=None --LabApp.extension_manager=readonly \
		--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate \
		--MappingKernelManager.transport_encryption=auto --log-level=WARN \
		$(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

test: $(BUILT) ## check the style, then run all tests (ARGS go to pytest)
	$(say)
	@$(RUN) -m ruff check
	@$(RUN) -m pytest -q $(ARGS)

notebooks: $(BUILT) ## run the chapters on fresh kernels, in place (ARGS="02 03")
	$(say)
	@$(RUN) notebooks/run.py $(ARGS)

grade: $(BUILT) ## grade a folder of submissions (SUBMISSIONS=folder OUT=marks.csv)
	$(say)
	@test -n "$(SUBMISSIONS)" || { echo "Name the folder that holds one folder" \
		"a student: make grade SUBMISSIONS=path/to/folder" >&2; exit 1; }
	@$(RUN) -m nds_helpers.classroom.grading_marks "$(SUBMISSIONS)" "$(OUT)"

precheck: $(BUILT) ## see whether a problem set can be handed in (FILE=notebook)
	@test -n "$(FILE)" || { echo "Name the notebook:" \
		"make precheck FILE=path/to/psN_name.ipynb" >&2; exit 1; }
	@$(RUN) -m nds_helpers.classroom.grading_precheck "$(FILE)"

bench: $(BUILT) ## measure the speeds of this machine and write a table
	$(say)
	@$(RUN) bench/run.py $(ARGS)
	$(if $(ARGS),,@$(RUN) bench/faults.py)

llmbench: $(BUILT) ## measure SmolLM2, with ARGS="--per-kind 2" in under an hour (resumes)
	$(say)
	@$(RUN) bench/smollm2.py $(ARGS)

recorded: $(BUILT) ## measure the runs that chapter 10 shows (some minutes, resumes)
	$(say)
	@$(RUN) data/make_recorded.py

smollm2: $(BUILT) ## fetch the real language model of chapter 05 (93 MB, once)
	$(say)
	@$(RUN) -c "from nds_helpers.models import smollm2; \
		print('SmolLM2 is in', smollm2.fetch())"

data: $(BUILT) ## train the shipped models anew (hours; each step resumes if stopped)
	$(say)
	@$(RUN) data/make_tiny/corpus.py
	@$(RUN) data/make_tiny/train.py
	@$(RUN) data/make_tiny/distill.py
	@$(RUN) data/make_tiny/evaluate.py
	@$(RUN) data/make_smollm2/sample.py --tokens 1000000
	@$(RUN) data/make_smollm2/train.py --shards 24 --epochs 2
	@$(RUN) data/make_smollm2/train.py --shards 31 --epochs 1 --peak-rate 5e-4 \
		--behind data/work/smollm2/draft-0-24-2.pt
	@$(RUN) data/make_smollm2/train.py --skip 31 --shards 46 --epochs 1 \
		--behind data/work/smollm2/draft-0-31-1.pt
	@$(RUN) data/make_smollm2/train.py --skip 31 --shards 56 --epochs 1 \
		--peak-rate 3e-4 --behind data/work/smollm2/draft-31-46-1.pt

pins: ## move constraints.txt to the newest versions that pyproject.toml allows
	$(say)
	$(need_python)
	@$(PYTHON) -m venv --clear .venv-pins
	@.venv-pins/bin/python $(INSTALL) $(ARGS)
	@.venv-pins/bin/python -m pip freeze --exclude-editable | sed 's/+.*//' > .venv-pins/new
	@{ grep '^#' constraints.txt; cat .venv-pins/new; } > .venv-pins/constraints.txt
	@mv .venv-pins/constraints.txt constraints.txt
	@rm -r .venv-pins

clean: ## remove .venv, caches and build folders (data/work stays)
	$(say)
	@rm -rf .venv .venv-pins .pytest_cache .ruff_cache build dist *.egg-info
	@find . -name __pycache__ -prune -exec rm -r {} +
	@find . -name .ipynb_checkpoints -prune -exec rm -r {} +
