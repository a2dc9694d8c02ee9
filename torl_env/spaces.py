"""The text space both sides of the environment use."""

from typing import Any

import gymnasium
import numpy as np

_SAMPLE_CHARS = 64  # samples stay readable; the limit of a space is far longer
_ALPHABET = "abc xyz 0123456789 +-*/=()[]{}\\$_^`'\".,:;\n\t é ß 中 数 π √ ≤ 🙂"


class UnicodeText(gymnasium.Space[str]):
    r"""All Unicode text of at most `max_length` characters, newlines and the empty string included.

    (`gymnasium.spaces.Text` rejects what is not in a given character set and, by default, the empty string.) Lone
    surrogates are not text: nothing could encode them.

    Example:
        >>> UnicodeText(5) == UnicodeText(5), "π\n" in UnicodeText(5), "" in UnicodeText(5), "abcdef" in UnicodeText(5)
        (True, True, True, False)
    """

    def __init__(self, max_length: int, seed: int | np.random.Generator | None = None) -> None:
        """Make the space; a `max_length` below 1 is a ValueError."""
        if max_length < 1:
            raise ValueError(f"`max_length` ({max_length}) should be at least 1.")
        self.max_length = max_length
        super().__init__(shape=None, dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: text has no fixed-size array form."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a random text of at most 64 characters.

        Raises:
            ValueError: if a mask is given; there is nothing it could mean.
        """
        if mask is not None or probability is not None:
            raise ValueError("`UnicodeText.sample` takes neither `mask` nor `probability`.")
        length = self.np_random.integers(min(self.max_length, _SAMPLE_CHARS) + 1)
        return "".join(_ALPHABET[i] for i in self.np_random.integers(len(_ALPHABET), size=length))

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a text of this space."""
        if not isinstance(x, str) or len(x) > self.max_length:
            return False
        try:
            x.encode()
        except UnicodeEncodeError:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash(("UnicodeText", self.max_length))

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"
