"""Defines the settings of a deployment of replicas."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from server.settings.base import Section, Text


class DeploySection(Section):
    """Replicas behind one address, for `dspark deploy`; `dspark serve` is one server without it."""

    replicas: Annotated[int, Field(ge=1)] = Field(
        2, description="Number of replicas, each with an engine."
    )
    min_replicas: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Fewest replicas, in place of deploy.replicas; needs max_replicas."
    )
    max_replicas: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Most replicas, in place of deploy.replicas; needs min_replicas."
    )
    target_ongoing_requests: Annotated[float, Field(gt=0)] = Field(
        8.0,
        description="Requests of a replica, running and waiting, that the number of replicas "
        "follows between min_replicas and max_replicas.",
    )
    num_cpus: Annotated[float, Field(gt=0)] = Field(
        1.0,
        description="Cores that a replica reserves; with device.num_threads auto also its threads.",
    )
    num_gpus: Annotated[float, Field(ge=0)] = Field(0.0, description="GPUs of a replica.")
    routing: Literal["prefix", "power_of_two"] = Field(
        "prefix",
        description="prefix: a request goes to the replica that has seen the longest beginning of "
        "its text; power_of_two: to the less busy one of two random replicas.",
    )
    balance_threshold: Annotated[int, Field(ge=0)] = Field(
        8,
        description="Requests that a replica may have more than the least busy one and still get "
        "those whose text it has seen.",
    )
    address: Text | None = Field(
        None,
        description="Ray cluster: auto is the one on this machine, else host:port; null starts "
        "Ray on this machine until the command ends.",
    )

    @model_validator(mode="after")
    def _one_kind_of_count(self) -> "DeploySection":
        least, most = self.min_replicas, self.max_replicas
        if (least is None) != (most is None):
            given, missing = ("min", "max") if most is None else ("max", "min")
            raise ValueError(
                f"deploy.{given}_replicas is given without deploy.{missing}_replicas; accepted: "
                "both of them"
            )
        if least is not None and most is not None and least > most:
            raise ValueError(
                f"deploy.min_replicas: found {least}; accepted: at most deploy.max_replicas {most}"
            )
        if least is not None and "replicas" in self.model_fields_set:
            raise ValueError(
                "deploy.replicas and deploy.min_replicas are both given; accepted: one of them"
            )
        return self
