"""What can go wrong with an effect, in two families that cross into workflows by their type names.

EffectError
|- Retryable            the same attempt may be made again, with the same key
|  |- OutcomeUnknown      sent or perhaps sent; nobody heard the answer
|  |- NotSent             proven not sent by this attempt
|  `- HeldBack            the provider asked for a pause, or refused our credentials: nothing was done
`- Terminal             another attempt of the same kind cannot help: `effects.settle` decides
   |- FingerprintMismatch the key stands for another payload
   |- WindowPassed        the send window is over: the key is looked up, then voided
   |- RequestRefused      the provider refused the request itself: looked up, then voided
   |- Alarmed             an answer that contradicts the intent: a person decides
   |- OriginMismatch      the intent belongs to another deployment
   |- NameUsedTwice       one run used one name for two effects
   |- InvalidEffect       the effect cannot be written down: no key, no request
   `- InvalidCommand      a person's command lacks who, why or what it stands on
"""


class EffectError(Exception):
    """Base of every error of the effect protocol."""


class Retryable(EffectError):
    """The same key may be tried again."""


class OutcomeUnknown(Retryable):
    """An attempt was sent, or perhaps sent, and no receipt was seen."""


class NotSent(Retryable):
    """This attempt provably sent nothing."""


class HeldBack(Retryable):
    """The provider did nothing with this delivery and may be asked again later."""

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Terminal(EffectError):
    """Trying the same again cannot help."""


class FingerprintMismatch(Terminal):
    """The key already stands for another payload; the message shows both."""


class WindowPassed(Terminal):
    """Nothing may be sent under this key any more."""


class RequestRefused(Terminal):
    """The provider refused the request itself; this delivery did nothing."""


class Alarmed(Terminal):
    """An answer contradicts the intent; nothing is concluded from it."""


class OriginMismatch(Terminal):
    """The intent's origin is not this worker's."""


class NameUsedTwice(Terminal):
    """A name was used for two effects of one run."""


class InvalidEffect(Terminal, ValueError):
    """An effect, scope or name that cannot be keyed or written down."""


class InvalidCommand(Terminal, ValueError):
    """A command that does not say who, why, or what it stands on."""
