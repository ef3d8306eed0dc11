"""Routes requests to replicas through Ray Serve's interface for routers."""

from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from dspark.deploy.prefix_routing import PrefixIndex, choose, power_of_two
from dspark.deploy.route import Route, replica_name


class ReplicaRouter(RequestRouter):  # type: ignore[misc]
    """Routes by the `Route` that is the first argument of a call.

    A request that names a running replica goes there. Others go by their leading text, or to the
    less busy one of two replicas, among those that have not refused them yet.
    """

    def initialize_state(self, *, routing: str, balance_threshold: int) -> None:
        """Take the settings of the section `deploy`."""
        self._index = PrefixIndex() if routing == "prefix" else None
        self._balance_threshold = balance_threshold
        self._num_running: Counter[ReplicaID] = Counter()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the chosen replica first, then the others for when it cannot be reached."""
        names = {replica_name(r.replica_id.unique_id): r for r in candidate_replicas}
        route = _route_of(pending_request)
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        if not names:
            return []
        if route.replica in names:
            return [[names[route.replica]]]
        left = names.keys() - route.excluded or names.keys()
        loads = {name: self._load(names[name]) for name in sorted(left)}
        if self._index is None:
            first = power_of_two(loads)
        else:
            first = choose(
                self._index, route.keys, loads, balance_threshold=self._balance_threshold
            )
        return [[names[first]], [names[name] for name in loads if name != first]]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        if self._index is not None:
            running = {replica_name(each.unique_id) for each in self.curr_replicas}
            keys = _route_of(pending_request).keys
            self._index.insert(keys, replica_name(replica_id.unique_id), running)

    def on_send_request(self, replica_id: ReplicaID) -> None:
        super().on_send_request(replica_id)
        self._num_running[replica_id] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        super().on_request_completed(replica_id, internal_request_id)
        self._num_running[replica_id] = max(0, self._num_running[replica_id] - 1)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        for replica_id in self._num_running.keys() - self.curr_replicas.keys():
            del self._num_running[replica_id]

    def _load(self, replica: RunningReplica) -> int:
        """Return the unfinished requests of a replica, those of other gateways as last seen."""
        last_seen = self.replica_queue_len_cache.get(replica.replica_id) or 0
        return max(self._num_running[replica.replica_id], last_seen)


def _route_of(pending: PendingRequest | None) -> Route:
    first = pending.args[0] if pending is not None and pending.args else None
    return first if isinstance(first, Route) else Route()
