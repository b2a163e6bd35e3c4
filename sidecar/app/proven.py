"""What a response may not do whatever its file says: act by a means that was never seen to work, or send elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic import BaseModel

from sidecar.actuators.egress import EgressList
from sidecar.errors import ConfigError, Problem
from sidecar.hooks import Details, Remediation
from sidecar.plugins import details
from sidecar.responses.loader import LoadedResponses
from sidecar.responses.parameters import Templated
from sidecar.responses.response import Mode, Response
from sidecar.yamlfile import Document


def held(
    document: Document, loaded: LoadedResponses, remediations: Mapping[str, Remediation], egress: EgressList | None
) -> LoadedResponses:
    """The responses of a file, `act` lowered to `suggest` with a warning where the remediation is unproven.

    `egress` None: not known here, and not checked. Raises ConfigError for URLs that are not on the list.
    """
    out: list[Response] = []
    warnings = list(loaded.warnings)
    problems: list[Problem] = []
    for index, response in enumerate(loaded.responses):
        params = response.params
        told = details(remediations[response.remediation])
        why = _why(told, params)
        if why and response.mode > Mode.SUGGEST:
            place = ("responses", index, "mode")
            text = f"`suggest` at most: {why}"
            warnings.append(document.problem(place, text, level="warning"))
            response = replace(response, mode=Mode.SUGGEST)
        if egress is not None and isinstance(params, BaseModel):
            problems += [
                document.problem(("responses", index, "with"), f"{url} is not on egress.allow of the configuration")
                for url in told.egress(params)
                if not egress.allows(url)
            ]
        out.append(response)
    if problems:
        raise ConfigError(problems)
    return LoadedResponses(tuple(out), tuple(warnings))


def _why(told: Details, params: BaseModel | Templated) -> str:
    if isinstance(params, BaseModel):
        return told.unproven(params)
    # What a template gives is known with the alert only.
    possible = told.unproven is not Details().unproven
    return (
        "its parameters are templates, and with some of them its effect was seen on recordings only" if possible else ""
    )
