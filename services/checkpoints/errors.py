"""What can go wrong with a checkpoint. Every message says what happened, what is not lost and what to do.

CheckpointError
|- Refused               the cut is not one: nothing was published, the previous checkpoint stands
|  |- CutVersionMismatch    contributors, or a contributor and the cut, stand at different positions
|  |- SourceChanged         a source was mutated while it was captured
|  |- ContributorMissing    a contributor did not report before its deadline
|  |- CoordinatorLost       the coordinator was not heard before its deadline
|  |- DuplicateContributor  one contributor id twice
|  |- ReplicaDivergence     replicas that must be equal are not
|  |- CoverageError         boxes do not tile their shape exactly once
|  |- InvariantViolation    a relation of the contract is false
|  `- NonFinite             NaN or infinity where the contract refuses them
|- Damaged               what was published is not what is there
|  |- DigestMismatch        bytes differ from their digest
|  |- SizeMismatch          a file is shorter or longer than recorded
|  `- ManifestInvalid       a record, a manifest or a contract that breaks a rule
|- FencedWriter          another coordinator holds the slot: this session is over
|- CommitFailed          nothing was published
|- CommitUnknown         the record was linked, or perhaps linked, and its durability is not known
|- Retired               the checkpoint is marked for removal: not damaged, look again
|- WeightsOnly           the checkpoint lacks what the profile needs
|- Incompatible          the checkpoint does not fit the target: all differences at once
|  `- LayoutChanged         what belongs to one contributor has no place in another layout
|- JournalBehind         the journal given is older than the checkpoint's watermark
`- JournalForked         the journal given has another history than the checkpoint's watermark
"""


class CheckpointError(Exception):
    """Base of every error of the checkpoint store."""


class Refused(CheckpointError):
    """The cut is refused: nothing was published."""


class CutVersionMismatch(Refused):
    """A version differs between contributors, or from the cut; the message shows both numbers."""


class SourceChanged(Refused):
    """A source was being mutated, or was mutated, while it was captured."""


class ContributorMissing(Refused):
    """A contributor did not report before its deadline."""


class CoordinatorLost(Refused):
    """The coordinator was not heard before its deadline, and nothing had been released."""


class DuplicateContributor(Refused):
    """One contributor id reported twice."""


class ReplicaDivergence(Refused):
    """Replicas that the contract declares equal differ."""


class CoverageError(Refused):
    """Boxes that leave a gap, overlap or reach outside their shape."""


class InvariantViolation(Refused):
    """A relation, a required role or a value contradicts the contract."""


class NonFinite(Refused):
    """NaN or infinity in an item whose role refuses them."""


class Damaged(CheckpointError):
    """What was published is not what is there."""


class DigestMismatch(Damaged):
    """Bytes that do not have the digest they were recorded with."""


class SizeMismatch(Damaged):
    """A file that is missing, shorter or longer than recorded."""


class ManifestInvalid(Damaged):
    """A record, a manifest or a contract that breaks a rule of its format."""


class FencedWriter(CheckpointError):
    """Another coordinator holds the slot; nothing of this one will be published any more."""


class CommitFailed(CheckpointError):
    """The save ended before its record was linked: nothing was published."""


class CommitUnknown(CheckpointError):
    """The record was or may have been linked; whether it survives a power cut is not known."""


class Retired(CheckpointError):
    """The checkpoint is marked for removal."""


class WeightsOnly(CheckpointError):
    """The checkpoint lacks roles that the profile needs; the message names them."""


class Incompatible(CheckpointError):
    """The checkpoint does not fit the target.

    Attributes:
        differences: every difference, each a sentence.
    """

    def __init__(self, message: str, *, differences: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.differences = differences


class LayoutChanged(Incompatible):
    """What belongs to one contributor has no place in another layout."""


class JournalBehind(CheckpointError):
    """The journal is older than the watermark that the checkpoint carries."""


class JournalForked(CheckpointError):
    """The journal has another history than the watermark that the checkpoint carries."""
