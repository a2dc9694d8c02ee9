"""Which of the recorded episodes a report holds, most wanted first; the page takes them until it is full."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from experiments.reporting.index import Entry, Place, groups

MAX_EPISODES = 2000
MIN_EPISODES = 500  # that the page makes room for
RULE = (
    "First one episode for every filter and behaviour, and one of every iteration of every run, training and "
    "evaluation apart; then, for each iteration, one for every filter and behaviour found in it; then whole groups, "
    "one iteration after the other in turn, by the group's number, "
    f"up to {MAX_EPISODES:,} episodes or the size of the file. Where fewer than {MIN_EPISODES} would fit, or none of "
    "an iteration, long texts are cut short. Evaluations number the same problems alike, so that a problem is there at "
    "several iterations."
)


def choose(entries: Sequence[Entry], max_episodes: int = MAX_EPISODES) -> list[Entry]:
    """Return the chosen entries, most wanted first, by `RULE`; the first step alone may exceed `max_episodes`."""
    places: dict[Place, list[Entry]] = defaultdict(list)
    for entry in entries:
        places[entry.place].append(entry)
    chosen = dict.fromkeys(_one_per_tag(entries))
    chosen.update(dict.fromkeys(members[0] for members in places.values()))
    for members in places.values():
        for entry in _one_per_tag(members):
            if len(chosen) < max_episodes:
                chosen[entry] = None
    of_place = {place: list(groups(members).values()) for place, members in places.items()}
    # Groups of an evaluation are single episodes: it takes as many of them in its turn as a training group has.
    share = max((len(group) for own in of_place.values() for group in own), default=0)
    turns = {place: _in_turns(own, share) for place, own in of_place.items()}
    while turns:
        for place in list(turns):
            turn = next(turns[place], None)
            if turn is None:
                del turns[place]
                continue
            # A group is taken whole or not at all: its advantages are relative to each other.
            new = [entry for entry in turn if entry not in chosen]
            if len(chosen) + len(new) > max_episodes:
                return list(chosen)
            chosen.update(dict.fromkeys(new))
    return list(chosen)


def _in_turns(of_place: Sequence[Sequence[Entry]], share: int) -> Iterator[list[Entry]]:
    """Yield whole groups, in order, of about `share` episodes together."""
    turn: list[Entry] = []
    for group in of_place:
        turn += group
        if len(turn) >= share:
            yield turn
            turn = []
    if turn:
        yield turn


def _one_per_tag(entries: Sequence[Entry]) -> list[Entry]:
    """Return the first entry with each tag that occurs."""
    seen: set[str] = set()
    found = []
    for entry in entries:
        if not seen.issuperset(entry.tags):
            seen.update(entry.tags)
            found.append(entry)
    return found
