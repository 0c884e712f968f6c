"""MLflow: a run in a store on the learner's disk, `mlflow.db`, shared by all runs of the learner."""

import logging
import re
from collections.abc import Mapping, Sequence

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from learner.loggers.base import RunInfo
from learner.runs.store import Step

STORE = "mlflow.db"
_TAG = "hone.run_id"
_STATES = {"completed": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_MAX_METRICS = 1000
_MAX_PARAMS = 100
_MAX_PARAM = 6000
_REFUSED = re.compile(r"[^\w.\- :/]")
"""Characters that MLflow takes in no name."""


class MlflowLogger:
    """Keeps one MLflow run per run, found again by its tag; a step that is in it is not added again."""

    def __init__(self, run: RunInfo) -> None:
        """Writes nothing yet."""
        # Its tables are made with a line of log for each.
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self._run = run
        self._client = MlflowClient(tracking_uri=f"sqlite:///{run.shared.absolute() / STORE}")
        self._id = ""

    def begin(self, steps: Sequence[Step]) -> None:
        """Finds or makes the run, and adds what it lacks."""
        experiment = self._experiment()
        self._id = self._found(experiment)
        recorded = self._recorded()
        if steps and max(recorded.values(), default=-1) > steps[-1].step:
            # The run went back to an earlier checkpoint, and a figure of MLflow cannot be taken back.
            self._client.delete_run(self._id)
            self._id, recorded = self._found(experiment), {}
        self._client.update_run(self._id, status="RUNNING")
        for step in steps:
            self._log(
                step,
                {k: v for k, v in step.metrics.items() if step.step > recorded.get(_named(k), -1)},
            )

    def step(self, step: Step) -> None:
        """Adds the figures of a step."""
        self._log(step, step.metrics)

    def end(self, state: str) -> None:
        """Says how the run ended."""
        self._client.set_terminated(self._id, status=_STATES[state])

    def _found(self, experiment: str) -> str:
        """Finds the run by its tag, or makes it; its settings are there afterwards."""
        run = self._run
        found = self._client.search_runs([experiment], f"tags.`{_TAG}` = '{run.run_id}'")
        made = (
            found[0]
            if found
            else self._client.create_run(experiment, run_name=run.run_id, tags={_TAG: run.run_id})
        )
        params = [Param(name, str(value)[:_MAX_PARAM]) for name, value in run.settings.items()]
        for start in range(0, len(params), _MAX_PARAMS):
            # The same again is no change, so that a life that ended half-way through is made whole.
            self._client.log_batch(made.info.run_id, params=params[start : start + _MAX_PARAMS])
        return str(made.info.run_id)

    def _log(self, step: Step, metrics: Mapping[str, float]) -> None:
        at = int(step.end_time * 1000)
        values = [Metric(_named(name), value, at, step.step) for name, value in metrics.items()]
        for start in range(0, len(values), _MAX_METRICS):
            self._client.log_batch(self._id, metrics=values[start : start + _MAX_METRICS])

    def _recorded(self) -> dict[str, int]:
        """The newest step of each figure that is in the run."""
        names = self._client.get_run(self._id).data.metrics
        return {
            name: max(entry.step for entry in self._client.get_metric_history(self._id, name))
            for name in names
        }

    def _experiment(self) -> str:
        name = self._run.project
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)


def _named(name: str) -> str:
    return _REFUSED.sub("_", name)
