"""Builds the Ray Serve application: a gateway before replicas."""

from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.deployment import Application
from ray.serve.schema import LoggingConfig

from dspark.deploy.gateway import Gateway
from dspark.deploy.replica import Replica
from server.settings.schema import Settings
from server.settings.schema_deploy import DeploySection

# Ray's own limit on the requests of a replica; the engine's queue has the one that counts.
_NO_LIMIT = 1_000_000
_FEWEST_WAITING = 64  # while replicas are chosen; Ray counts those too
_HEALTH_PERIOD_S = 2.0  # Ray replaces a replica after the third failure


def build_application(settings: Settings) -> Application:
    """Return the application. Deployed again, it replaces gateway and replicas one by one."""
    deploy, server = settings.deploy, settings.server
    # Replicas log requests themselves; of what Ray logs, warnings.
    logging_config = LoggingConfig(log_level="WARNING", enable_access_log=False)
    replicas = serve.deployment(
        Replica,
        name="replica",
        logging_config=logging_config,
        max_ongoing_requests=_NO_LIMIT,
        max_queued_requests=max(_FEWEST_WAITING, settings.scheduler.max_queued_requests),
        ray_actor_options={"num_cpus": deploy.num_cpus, "num_gpus": deploy.num_gpus},
        request_router_config=RequestRouterConfig(
            request_router_class="dspark.deploy.request_router:ReplicaRouter",
            request_router_kwargs={
                "routing": deploy.routing,
                "balance_threshold": deploy.balance_threshold,
            },
        ),
        health_check_period_s=_HEALTH_PERIOD_S,
        graceful_shutdown_timeout_s=server.shutdown_timeout_s,
        graceful_shutdown_wait_loop_s=0.5,
        **_count(deploy),
    )
    gateway = serve.deployment(
        serve.ingress()(Gateway),
        name="gateway",
        max_surge_percent=100,  # a new gateway runs before the old one ends
        logging_config=logging_config,
        max_ongoing_requests=_NO_LIMIT,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=server.shutdown_timeout_s,
        graceful_shutdown_wait_loop_s=0.5,
    )
    bound = replicas.bind(_for_replica(settings))
    application: Application = gateway.bind(bound, settings)
    return application


def _count(deploy: DeploySection) -> dict[str, Any]:
    if deploy.min_replicas is None or deploy.max_replicas is None:
        return {"num_replicas": deploy.replicas}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=deploy.min_replicas,
            max_replicas=deploy.max_replicas,
            target_ongoing_requests=deploy.target_ongoing_requests,
        )
    }


def _for_replica(settings: Settings) -> Settings:
    """Return the settings with as many threads as a replica has cores."""
    if settings.device.num_threads != "auto":
        return settings
    threads = max(1, int(settings.deploy.num_cpus))
    device = settings.device.model_copy(update={"num_threads": threads})
    return settings.model_copy(update={"device": device})
