"""Names of people as they claim them: who is another person, and what is no person's name.

Nobody signs anything here; a rule that wants two people is kept against haste and mistakes, not against a liar.
"""

import unicodedata

# A decision that no person took begins so: "rule: approval auto".
RULE = "rule:"
LONGEST_NAME = 128
LONGEST_REASON = 1000


def same_person(one: str, other: str) -> bool:
    """Whether two claimed names are one person's: however they are spaced, and in capitals or not."""
    return _plain(one) == _plain(other)


def problem_with_name(by: str) -> str:
    """Why this is no name to decide under; empty when it is one."""
    if not by.strip():
        return "needs the name of the person who gives it"
    if len(by) > LONGEST_NAME or not by.isprintable():
        return f"needs a name of at most {LONGEST_NAME} printable characters"
    if _plain(by).startswith(RULE):
        return f"needs a person's name: {RULE!r} is how decisions begin that nobody took"
    return ""


def _plain(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())
