"""Remember, recall, credit: what the service does, without transport. Safe to use from several threads."""

import random
import threading
from collections import OrderedDict
from functools import partial

from memory.embedding import Embedder
from memory.nearest import VectorIndex, Vectors
from memory.records import Credited, Memory, MemoryPage, Recalled, Remembered, Snapshot
from memory.requests import Credit, Recall, Remember
from memory.selection import select
from memory.store import Choice, MemoryStore
from memory.utility import updated


class Memories:
    """Memories in a store, searched by vectors in RAM."""

    def __init__(
        self,
        store: MemoryStore,
        embedder: Embedder,
        *,
        learning_rate: float,
        max_loaded_memories: int,
    ) -> None:
        """Load nothing yet.

        Args:
            store: Holds everything; used by this object alone.
            embedder: The one whose vectors the store holds.
            learning_rate: alpha of credits that say none.
            max_loaded_memories: Vectors in RAM; beyond them the scope that was used longest ago is left out.
        """
        self._store = store
        self._embedder = embedder
        self._learning_rate = learning_rate
        self._max_loaded = max_loaded_memories
        self._lock = threading.Lock()
        self._indexes: OrderedDict[int, VectorIndex] = OrderedDict()
        """By scope, the one used last at the end."""

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            self._store.close()

    def remember(self, request: Remember) -> Remembered:
        """Add a memory, unless it is there."""
        vector = self._embedder.embed(request.intent)
        with self._lock:
            place = self._store.add(request, vector)
            if place is not None and place.scope in self._indexes:
                self._indexes[place.scope].add(place.position, vector)
            memory = self._store.get(request.namespace, request.memory_id)
        return Remembered(memory=memory, created=place is not None)

    def recall(self, request: Recall) -> tuple[Recalled, ...]:
        """Return what fits best, and record it as used where a rollout asks.

        Raises:
            NotFound: there is no such snapshot.
        """
        query = self._embedder.embed(request.query)
        with self._lock:
            before = self._store.recalled(request) if request.rollout_id else None
            if before is not None:
                return before
            return self._store.choose(request, self._choices(request, query))

    def credit(self, credit: Credit) -> tuple[Credited, ...]:
        """Move the utilities of what was used towards a reward, once per credit.

        Raises:
            NotFound: a memory named is not there.
            AlreadyExists: the id stands for a credit with other content.
        """
        own = credit.learning_rate
        update = partial(
            updated,
            reward=credit.reward,
            learning_rate=self._learning_rate if own is None else own,
            discount=credit.discount,
            max_next_utility=credit.max_next_utility,
        )
        with self._lock:
            return self._store.credit(credit, update)

    def forget(self, namespace: str, memory_id: str) -> bool:
        """Remove a memory; False if it is not there."""
        with self._lock:
            place = self._store.forget(namespace, memory_id)
            if place is not None and place.scope in self._indexes:
                self._indexes[place.scope].remove(place.position)
            return place is not None

    def get(self, namespace: str, memory_id: str, snapshot_name: str) -> Memory:
        """Return one memory.

        Raises:
            NotFound: it is not there.
        """
        with self._lock:
            return self._store.get(namespace, memory_id, snapshot_name)

    def page(
        self, namespace: str, snapshot_name: str, first_position: int, size: int
    ) -> MemoryPage:
        """Return up to `size` memories from a position on, oldest first.

        Raises:
            NotFound: there is no such snapshot.
        """
        with self._lock:
            scope = self._store.scope(namespace, snapshot_name)
            if scope is None:
                return MemoryPage(memories=(), next_position=0)
            return self._store.page(scope, first_position, size)

    def snapshot(self, namespace: str, snapshot_name: str) -> Snapshot:
        """Copy a namespace under a name, or return the copy that has it."""
        with self._lock:
            return self._store.snapshot(namespace, snapshot_name)

    def _choices(self, request: Recall, query: Vectors) -> list[Choice]:
        scope = self._store.scope(request.namespace, request.snapshot_name)
        if scope is None:
            return []
        nearest = self._index(scope).nearest(query, request.max_candidate_count)
        positions = nearest.positions.tolist()
        selection = select(
            nearest.similarities,
            self._store.utilities(positions),
            min_similarity=request.min_similarity,
            utility_weight=request.utility_weight,
            count=request.max_memory_count,
            exploration_rate=request.exploration_rate,
            # Drawn from the whole request: rollouts that give no seed do not all draw alike.
            rng=random.Random(request.key),
        )
        return [
            Choice(
                position=positions[index],
                similarity=float(nearest.similarities[index]),
                score=selection.score_of(index),
            )
            for index in selection.selected
        ]

    def _index(self, scope: int) -> VectorIndex:
        if scope not in self._indexes:
            self._indexes[scope] = self._store.vectors(scope)
        self._indexes.move_to_end(scope)
        while len(self._indexes) > 1 and self._loaded() > self._max_loaded:
            self._indexes.popitem(last=False)
        return self._indexes[scope]

    def _loaded(self) -> int:
        return sum(len(index) for index in self._indexes.values())
