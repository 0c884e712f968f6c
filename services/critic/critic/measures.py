"""What the critic counts, for Prometheus."""

from opentelemetry.metrics import Meter

from servicekit import attributes
from servicekit.metrics import SECONDS_BUCKETS


class Measures:
    """Judgements by kind and how they ended, and what the endpoint took for them."""

    def __init__(self, meter: Meter) -> None:
        """Record with `meter`."""
        self._judgements = meter.create_counter(
            attributes.METRIC_JUDGEMENTS,
            description="Questions, by kind and by verdict, contradicted or the reason for none",
        )
        self._seconds = meter.create_histogram(
            attributes.METRIC_GEN_AI_DURATION,
            unit="s",
            description="How long the endpoint took for a try",
            explicit_bucket_boundaries_advisory=SECONDS_BUCKETS,
        )
        self._tokens = meter.create_counter(
            attributes.METRIC_GEN_AI_TOKENS,
            unit="{token}",
            description="Tokens that the endpoint read and wrote",
        )

    def ended(self, kind: str, outcome: str) -> None:
        """Count a question."""
        self._judgements.add(
            1, {attributes.GEN_AI_EVALUATION_NAME: kind, attributes.OUTCOME: outcome}
        )

    def tried(self, model: str, seconds: float, error: str) -> None:
        """Record a try of the endpoint; `error` is empty where it answered."""
        self._seconds.record(
            seconds, {attributes.GEN_AI_MODEL: model, attributes.ERROR_KIND: error}
        )

    def used(self, model: str, input_tokens: int, output_tokens: int) -> None:
        """Count tokens."""
        for kind, number in (("input", input_tokens), ("output", output_tokens)):
            self._tokens.add(
                number, {attributes.GEN_AI_MODEL: model, attributes.GEN_AI_TOKEN_TYPE: kind}
            )
