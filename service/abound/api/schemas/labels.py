"""Schemas of requests that register or change labels."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from abound.api.schemas.learn_classify import Source, Wait
from abound_core.model.label_changes import Label, LabelChange

NAME = "The name of the label, as a person would write it."
PARENT = "The label of which this one is a kind; it need not be registered. Shown, not used for ranking."
ALIASES = (
    "Other names that mean the label from now on, and are learned with its name. A name that has another label is left "
    "out."
)
METADATA = "Any other facts, such as a colour or an URL; stored and shown."
LEARN = (
    "Learn names and descriptions, each once, so that labels without instances can be suggested. A label without a "
    "name that looks like words is its own name."
)


class LabelDetails(Struct, omit_defaults=True):
    """The registered details of a label, as the model stores them."""

    name: Annotated[str, Meta(min_length=1, max_length=512, description=NAME, examples=["Grain"])] | None = None
    description: Annotated[str, Meta(min_length=1, max_length=4096, examples=["wheat, corn and rye"])] | None = None
    parent: Annotated[str, Meta(min_length=1, max_length=512, description=PARENT)] | None = None
    metadata: Annotated[dict[str, Any], Meta(description=METADATA)] | None = None


class LabelRegistration(LabelDetails, forbid_unknown_fields=True, kw_only=True):
    """A label with its details and other names."""

    label: Annotated[str, Meta(min_length=1, max_length=512, examples=["grain"])] | int | float
    aliases: Annotated[list[Label], Meta(max_length=1000, description=ALIASES)] = []


class RegisterRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Labels to register: all of them, or none if one is wrong."""

    labels: Annotated[list[LabelRegistration], Meta(min_length=1, description="Each label once.")]
    learn: Annotated[bool, Meta(description=LEARN)] = True
    wait: Wait = "applied"
    source: Source | None = None


register_decoder = msgspec.json.Decoder(RegisterRequest)
registration_decoder = msgspec.json.Decoder(LabelRegistration)
_decoder = msgspec.json.Decoder(LabelDetails)
NO_DETAILS = LabelDetails()


def details_from(stored: bytes) -> LabelDetails:
    """Return the details of a label as the model stores them, or no details if this release cannot read them."""
    try:
        return _decoder.decode(stored) if stored else NO_DETAILS
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return NO_DETAILS


DRY_RUN = Annotated[bool, Meta(description="Return what would change, and change nothing.")]
ALIAS = Annotated[bool, Meta(description="Whether the old name stays as an alias; if not, it is free.")]


class RenameRequest(Struct, forbid_unknown_fields=True, kw_only=True, rename={"name": "from"}):
    """A label to rename."""

    name: Label
    to: Label
    alias: ALIAS = True
    dry_run: DRY_RUN = False


class MergeRequest(Struct, forbid_unknown_fields=True, kw_only=True, rename={"name": "from"}):
    """Labels to merge into another one."""

    name: Annotated[list[Label], Meta(min_length=1)]
    into: Label
    alias: ALIAS = True
    dry_run: DRY_RUN = False


class ChangesRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Changes of labels, made in their order: all of them, or none if one is wrong."""

    changes: Annotated[list[LabelChange], Meta(min_length=1)]
    dry_run: DRY_RUN = False
