"""The RayJob manifest: fields and types of KubeRay's API, GPUs that suffice for the recipe, a command that is one.

The schema restates, by hand and for the part that is used, `RayJobSpec`, `RayClusterSpec`, `HeadGroupSpec` and
`WorkerGroupSpec` of KubeRay's `ray.io/v1` types (ray-operator/apis/ray/v1/{rayjob,raycluster}_types.go); a field that
they do not have is refused. The pod templates are Kubernetes', of which only what the manifest relies on is checked.
"""

import copy
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError

from experiments.launch import resolve
from experiments.train import parse_arguments

MANIFEST = Path(__file__).parent.parent / "experiments" / "kuberay" / "rayjob.yaml"
TEXT, COUNT, YES_NO = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}


def record(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


QUANTITIES = {"type": "object", "additionalProperties": {"type": "string", "pattern": r"^\d+(Mi|Gi|Ti)?$"}}
CONTAINER = record(
    ["name", "image", "resources"],
    name=TEXT,
    image=TEXT,
    env=list_of(record(["name", "value"], name=TEXT, value=TEXT)),
    resources=record(["limits"], requests=QUANTITIES, limits=QUANTITIES),
    securityContext=record(
        [],
        runAsUser=COUNT,
        capabilities=record([], add=list_of(TEXT), drop=list_of(TEXT)),
        seccompProfile=record(["type"], type={"enum": ["Unconfined", "RuntimeDefault", "Localhost"]}),
        appArmorProfile=record(["type"], type={"enum": ["Unconfined", "RuntimeDefault", "Localhost"]}),
    ),
    volumeMounts=list_of(record(["name", "mountPath"], name=TEXT, mountPath=TEXT)),
)
VOLUME = record(
    ["name"],
    name=TEXT,
    persistentVolumeClaim=record(["claimName"], claimName=TEXT),
    emptyDir=record([], medium={"enum": ["", "Memory"]}, sizeLimit=TEXT),
)
POD = record(["spec"], spec=record(["containers"], containers=list_of(CONTAINER), volumes=list_of(VOLUME)))
HEAD = record(
    ["rayStartParams", "template"], serviceType=TEXT, enableIngress=YES_NO, rayStartParams=TEXTS, template=POD
)
WORKERS = record(
    ["groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"],
    groupName=TEXT,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    numOfHosts=COUNT,
    rayStartParams=TEXTS,
    template=POD,
)
CLUSTER = record(
    ["headGroupSpec"],
    headGroupSpec=HEAD,
    workerGroupSpecs=list_of(WORKERS),
    rayVersion=TEXT,
    enableInTreeAutoscaling=YES_NO,
    suspend=YES_NO,
)
RAY_JOB = record(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=record(["name"], name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 47}),
    spec=record(
        ["entrypoint", "rayClusterSpec"],
        entrypoint=TEXT,
        runtimeEnvYAML=TEXT,
        jobId=TEXT,
        metadata=TEXTS,
        activeDeadlineSeconds=COUNT,
        backoffLimit=COUNT,
        submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode"]},
        entrypointNumCpus={"type": "number"},
        entrypointNumGpus={"type": "number"},
        entrypointResources=TEXT,
        shutdownAfterJobFinishes=YES_NO,
        ttlSecondsAfterFinished=COUNT,
        suspend=YES_NO,
        rayClusterSpec=CLUSTER,
    ),
)


@pytest.fixture
def manifest() -> dict[str, Any]:
    return yaml.safe_load(MANIFEST.read_text())


def test_the_manifest_is_a_ray_job(manifest: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(RAY_JOB)
    Draft202012Validator(RAY_JOB).validate(manifest)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "entryPoint"), "python"),
        (("spec", "backoffLimit"), "3"),
        (("spec", "rayClusterSpec", "headGroupSpec", "rayStartParams", "num-gpus"), 0),
        (("spec", "rayClusterSpec", "workerGroupSpecs", 0, "replica"), 1),
    ],
)
def test_a_misspelt_field_or_a_wrong_type_is_refused(
    manifest: dict[str, Any], path: tuple[Any, ...], value: Any
) -> None:
    wrong = copy.deepcopy(manifest)
    place = wrong
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValidationError):
        Draft202012Validator(RAY_JOB).validate(wrong)


def test_its_command_is_one_and_the_cluster_has_the_gpus_it_needs(manifest: dict[str, Any]) -> None:
    words = shlex.split(manifest["spec"]["entrypoint"])
    assert words[:3] == ["python", "-m", "experiments.train"]
    config = resolve(parse_arguments(words[3:])).config
    needed = config.num_learners * config.num_gpus_per_learner + config.num_env_runners * config.num_gpus_per_env_runner
    cluster = manifest["spec"]["rayClusterSpec"]
    [workers] = cluster["workerGroupSpecs"]
    [container] = workers["template"]["spec"]["containers"]
    assert workers["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"]) == needed == 8


def test_what_the_command_names_is_on_a_volume_that_all_pods_mount(manifest: dict[str, Any]) -> None:
    cluster = manifest["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        spec = group["template"]["spec"]
        claims = {volume["name"] for volume in spec["volumes"] if "persistentVolumeClaim" in volume}
        [container] = spec["containers"]
        shared = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in claims]
        paths = [word.partition("=")[2] or word for word in manifest["spec"]["entrypoint"].split() if "/" in word]
        assert len(paths) == 3 and all(path.startswith(f"{shared[0]}/") for path in paths)


def test_the_ray_version_is_the_one_that_is_pinned(manifest: dict[str, Any]) -> None:
    pins = (MANIFEST.parent.parent.parent / "constraints-gpu.txt").read_text().splitlines()
    assert f"ray=={manifest['spec']['rayClusterSpec']['rayVersion']}" in pins
