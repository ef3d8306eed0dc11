"""Orders requests: by arrival, or by priority with aging."""

from dataclasses import dataclass

from engine.api import PriorityOrder, Request, SchedulingPolicy


@dataclass(frozen=True, slots=True)
class RequestOrder:
    """Ranks requests for admission and preemption; a lower rank comes first.

    A request goes ahead of one that is d priorities below it, unless that one arrived
    d * aging_s seconds before it. All requests age alike, so ranks never change, and none
    waits for ever behind newer ones.
    """

    policy: SchedulingPolicy = "fcfs"
    priority_order: PriorityOrder = "higher_first"
    aging_s: float = 10.0

    def rank(self, request: Request, arrived_at: float) -> float:
        """Return the rank; requests of the same rank follow their arrival."""
        if self.policy == "fcfs":
            return 0.0
        is_higher_first = self.priority_order == "higher_first"
        priority = request.priority if is_higher_first else -request.priority
        return arrived_at / self.aging_s - priority
