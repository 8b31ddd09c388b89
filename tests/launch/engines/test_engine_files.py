"""The files of engines, by their structure, their loaders and a shell. test_engines_run.py executes them."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from kubernetes_words import expanded

from istbench.base.errors import UserError
from istbench.cluster.profile import load_profile
from istbench.launch.engines import kubeflow, parallelcluster, skypilot, slurm
from istbench.launch.engines.job import EngineJob
from istbench.launch.engines.yaml import yaml

HOSTILE = [
    "it's", 'a "b"', "$(touch fell)", "`touch fell`", "a\nb", ": #", "- x", "\\", "ж🙂", "${HOME}", "yes", "*",
    "a; b", "!x",
]  # fmt: skip
ENGINES = [skypilot, kubeflow, slurm, parallelcluster]


def job(**changed):
    given = {
        "name": "trial",
        "nodes": 4,
        "machine": load_profile("p3.2xlarge"),
        "words": ["run", "--method", "ist"],
    }
    return EngineJob(**{**given, "results": None, "install": "istbench", "hours": 2.0, **changed})


def read_yaml(text):
    """The documents of `text`."""
    return list(pytest.importorskip("yaml").safe_load_all(text))


# SkyPilot loads a task in a Python of its own. It would download the list of machines.
LOADER = """
import json, sys, sky, yaml
config = yaml.safe_load(sys.stdin.read())
task = sky.Task.from_yaml_config(config, secrets_overrides=[("ISTBENCH_SECRET", "0" * 32)])
(resources,) = task.resources
print(json.dumps({
    "nodes": task.num_nodes, "machine": resources.instance_type, "setup": task.setup, "run": task.run,
    "down": resources.autostop_config.down, "files": task.file_mounts,
    "buckets": {path: storage.mode.value for path, storage in task.storage_mounts.items()},
}))
"""
MACHINES = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region
p3.2xlarge,V100,1.0,8.0,61.0,,3.06,,us-east-1
"""


def loaded_by_skypilot(text, home):
    """What SkyPilot's own loader makes of `text`."""
    sky = shutil.which("sky")
    if sky is None:
        pytest.skip("no `sky` on PATH: pip install skypilot, in an environment of its own")
    for version in ("v7", "v8"):
        catalogue = home / ".sky" / "catalogs" / version / "aws" / "vms.csv"
        catalogue.parent.mkdir(parents=True)
        catalogue.write_text(MACHINES)
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    loaded = subprocess.run(
        [Path(sky).with_name("python"), "-c", LOADER], input=text, text=True, capture_output=True, env=environment
    )
    assert loaded.returncode == 0, loaded.stderr
    return json.loads(loaded.stdout.splitlines()[-1])


def scripts(engine, asked):
    """The shell texts of a file."""
    if engine is skypilot:
        return [skypilot.task(asked)["setup"], skypilot.task(asked)["run"]]
    if engine is kubeflow:
        (replicated,) = kubeflow.objects(asked)[0]["spec"]["template"]["spec"]["replicatedJobs"]
        (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
        return [expanded(container["command"][2], {container["env"][0]["name"]: "the secret"})]
    text = engine.file_of(asked)
    if engine is parallelcluster:
        text = "".join(f"{line[2:]}\n" for line in text.splitlines() if line.startswith("#|"))
        assert text.startswith("#!/bin/bash\n#SBATCH ")
    return [text]


@pytest.mark.processes
@pytest.mark.parametrize("image", [None, "registry.example/us/istbench:1"])
@pytest.mark.parametrize("engine", ENGINES)
def test_hostile_words_reach_the_command_as_they_are(engine, image, tmp_path):
    suite = tmp_path / "it's; a suite.toml"
    suite.write_text(
        "a = '''$(touch fell)'\n  `x`\n'''\n\n  b = \"ж $$ $(ISTBENCH_SECRET)\""
    )  # without a line feed at the end
    words = ["compare", str(suite), f"--plugin={suite}", *HOSTILE]
    for text in scripts(engine, job(words=words, image=image)):
        checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, "")
    work = tmp_path / "work"
    lines = text.replace("\n}\n", "\n").splitlines()
    (start,) = [place for place, line in enumerate(lines) if line.lstrip().startswith("timeout ")]
    asked = job(words=words, image=image)
    before = scripts(engine, asked)[0].splitlines() if engine is skypilot else lines[:start]
    installed = [place for place, line in enumerate(before) if "/bin/pip" in line and "install" in line]
    assert len(installed) == (image is None)
    begins = (installed or [place for place, line in enumerate(before) if line.lstrip()[:5] in ("work=", "trap ")])[
        -1
    ]
    last = next(place for place in range(start, len(lines)) if " --out " in lines[place])
    # The program of `timeout` prints its words in place of training.
    shell = "\n".join([*before[begins + 1 :], *lines[start : last + 1]])
    shown = f'timeout() {{ printf "%s\\0" "$@"; }}\nrank=0 first=1 results=r HOME=h\n{shell}'
    printed = subprocess.run(
        ["bash", "-c", shown], text=True, capture_output=True, check=True, env={"work": str(work)}, cwd=tmp_path
    )
    found = printed.stdout.split("\0")
    found = found[found.index("istbench") + 1 : found.index("--out")]
    copies = [str(work / f"files/{number}" / suite.name) for number in (0, 1)]
    assert found == ["compare", copies[0], f"--plugin={copies[1]}", *HOSTILE]
    assert [(work / f"files/{number}" / suite.name).read_bytes() for number in (0, 1)] == [suite.read_bytes()] * 2
    assert not (tmp_path / "fell").exists()


def test_yaml_reads_as_what_was_written(tmp_path):
    suite = tmp_path / "suite.toml"
    suite.write_text("\n\n  indented = 1\n\t\ttabs\n   \n\n")
    hostile = job(words=["compare", str(suite), *HOSTILE], install="istbench @ file:///x'y #z")
    assert read_yaml(skypilot.file_of(hostile)) == [skypilot.task(hostile)]
    assert read_yaml(kubeflow.file_of(hostile)) == list(kubeflow.objects(hostile))
    assert read_yaml(parallelcluster.file_of(hostile)) == [parallelcluster.configuration(hostile)]
    odd = {text: [text, {"a": text}, f"{text}\n", f" {text}\n", f"x{text}\ny\n", f"{text}\n\n"] for text in HOSTILE}
    assert read_yaml(yaml(odd)) == [odd]


def test_every_file_names_its_price_from_the_profile():
    for engine in ENGINES:
        assert "4 x p3.2xlarge: $12.24 an hour (2025-06 or before), $24.48 in 2 hours" in engine.file_of(job())


def test_a_task_of_skypilot_has_its_machines_its_bucket_and_its_end(tmp_path):
    wheel = tmp_path / "istbench-1-py3-none-any.whl"
    asked = job(results="s3://ours/ist", install=str(wheel), words=["run", "--workload", "speech"])
    found = skypilot.task(asked)
    assert (found["num_nodes"], found["resources"]["instance_type"]) == (4, "p3.2xlarge")
    assert found["resources"]["autostop"] == {"idle_minutes": 10, "down": True}
    assert found["file_mounts"] == {
        f"~/.istbench-wheel/{wheel.name}": str(wheel),
        "/istbench-results": {"source": "s3://ours/ist", "mode": "MOUNT_CACHED"},
    }
    assert f"install --quiet \"$HOME\"/.istbench-wheel/'{wheel.name}[speech]'\n" in found["setup"]
    assert '--out "/istbench-results"' in found["run"]
    assert " 7200 " in found["run"]
    # Without a bucket the machines are stopped, with their disks.
    assert skypilot.task(job())["resources"]["autostop"]["down"] is False


def test_skypilot_loads_its_task(tmp_path):
    wheel = tmp_path / "istbench-1-py3-none-any.whl"
    wheel.touch()
    asked = job(install=str(wheel), words=["compare", *HOSTILE])
    found = loaded_by_skypilot(skypilot.file_of(asked), tmp_path / "home")
    assert found == {
        "nodes": 4, "machine": "p3.2xlarge", "down": False, "buckets": {},
        "setup": skypilot.task(asked)["setup"], "run": skypilot.task(asked)["run"],
        "files": {f"~/.istbench-wheel/{wheel.name}": str(wheel)},
    }  # fmt: skip


# The fields of the objects as published, as far as the file has them.
POD = {
    "hostNetwork": bool, "dnsPolicy": str, "restartPolicy": str, "nodeSelector": dict, "affinity": dict,
    "containers": list, "volumes": list,
}  # fmt: skip
CONTAINER = {
    "name": str, "image": str, "command": list, "env": list, "resources": dict, "volumeMounts": list
}  # fmt: skip


def test_a_train_job_has_the_published_fields_and_the_network_of_the_host():
    runtime, train_job = kubeflow.objects(job(results="ours"))
    assert {part["apiVersion"] for part in (runtime, train_job)} == {"trainer.kubeflow.org/v1alpha1"}
    assert train_job["spec"] == {
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": runtime["kind"], "name": "trial"},
        "trainer": {"numNodes": 4},
    }
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 4, "torch": {}}
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    # Kubeflow Trainer looks for these two names.
    assert replicated["name"] == "node"
    labels = replicated["template"]["metadata"]["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    limits = replicated["template"]["spec"]
    assert limits["activeDeadlineSeconds"] > 7200
    pod = limits["template"]["spec"]
    assert {name: type(value) for name, value in pod.items()} == POD
    assert pod["hostNetwork"] is True
    (container,) = pod["containers"]
    assert {name: type(value) for name, value in container.items()} == CONTAINER
    assert (container["name"], container["resources"]) == ("node", {"limits": {"nvidia.com/gpu": 1}})
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "ours"}


def test_kubeflow_s_own_models_have_every_field_of_the_file():
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="no models of Kubeflow: pip install kubeflow-trainer-api"
    )
    kinds = [models.TrainerV1alpha1TrainingRuntime, models.TrainerV1alpha1TrainJob]
    for kind, part in zip(kinds, kubeflow.objects(job()), strict=True):
        read = kind.from_dict(json.loads(json.dumps(part)))
        assert json.loads(json.dumps(read.to_dict())) == part  # a field that they do not have is left out


def test_a_job_of_slurm_has_its_nodes_and_its_limit():
    text = slurm.file_of(job(results="/shared/ours"))
    options = re.findall(r"^#SBATCH --(.+)$", text, re.MULTILINE)
    assert options == [
        "job-name=trial", "nodes=4", "ntasks-per-node=1", "exclusive", "gpus-per-node=1", "time=152", "requeue"
    ]  # fmt: skip
    assert "#SBATCH --no-requeue\n" in slurm.file_of(dataclasses.replace(job(), words=("run", "--again")))
    assert "\nexport results=/shared/ours\n" in text
    text = slurm.file_of(job(results="ours", install="dist/i.whl"))
    assert '\nexport results="$SLURM_SUBMIT_DIR"/ours\n' in text
    assert " install --quiet \"$SLURM_SUBMIT_DIR\"/dist/'i.whl[speech]'\n" in text
    cpus = dataclasses.replace(job(), machine=load_profile("m5.2xlarge"))
    assert "gpus-per-node" not in slurm.file_of(cpus)


def test_a_cluster_of_parallelcluster_has_as_many_machines_and_minutes_as_its_job():
    found = parallelcluster.configuration(job())
    (queue,) = found["Scheduling"]["SlurmQueues"]
    assert queue["ComputeResources"] == [
        {"Name": "nodes", "InstanceType": "p3.2xlarge", "MinCount": 0, "MaxCount": 4}
    ]
    assert queue["CustomSlurmSettings"] == {"MaxTime": 152}
    (script,) = scripts(parallelcluster, job())
    assert script == slurm.file_of(job(results=f"{found['SharedStorage'][0]['MountDir']}/istbench-results"))


@pytest.mark.parametrize(
    ("engine", "changed", "message"),
    [
        (skypilot, {"results": "ours"}, "--results 'ours' is no bucket; give s3://BUCKET"),
        (kubeflow, {"results": "/ours"}, "--results '/ours' is no name of a PersistentVolumeClaim"),
        (kubeflow, {"install": "istbench.whl"}, "a local file, which pods cannot read; give an address"),
        (slurm, {"install": "--pre"}, "--install '--pre' is no requirement"),
        (slurm, {"words": ["run", "a\rb"]}, "characters that are not printable"),
        (slurm, {"words": ["run", "\u2028"]}, "characters that are not printable"),
    ],
)
def test_a_place_or_a_word_that_cannot_be_is_named(engine, changed, message):
    with pytest.raises(UserError, match=re.escape(message)):
        engine.file_of(job(**changed))


def test_an_image_is_that_of_the_engine_and_nothing_is_installed():
    asked = job(image="registry.example:5000/us/istbench:1", install="not-there.whl", results="/shared/x y")
    for engine in ENGINES:
        where = dataclasses.replace(asked, results=None) if engine in (skypilot, kubeflow) else asked
        text = engine.file_of(where)
        assert "pip" not in text
        assert '"${python#??}" -P -m torch.distributed.run' in text.replace('\\"', '"').replace("$$", "$")
    assert "container" not in slurm.file_of(job())
    assert (
        skypilot.task(dataclasses.replace(asked, results=None))["resources"]["image_id"] == f"docker:{asked.image}"
    )
    (replicated,) = kubeflow.objects(job(image=asked.image))[0]["spec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == asked.image
    assert pod["securityContext"] == {"fsGroup": 1000}
    assert "srun --kill-on-bad-exit=1 --container-image='registry.example:5000#us/istbench:1' " in slurm.file_of(
        asked
    )
    assert '\nmkdir -p "$results"\n' in slurm.file_of(asked)
    assert "needs Pyxis" in parallelcluster.file_of(asked)
    with pytest.raises(UserError, match="no name of an image"):
        job(image="--privileged")
    with pytest.raises(UserError, match="has a comma or colon"):
        slurm.file_of(dataclasses.replace(asked, results="/a,b"))


def test_an_address_of_a_wheel_is_no_local_file():
    (script,) = scripts(kubeflow, job(install="https://example.com/istbench.whl"))
    assert "install --quiet https://example.com/istbench.whl\n" in script


def test_files_that_are_too_long_for_a_file_are_refused(tmp_path):
    long = tmp_path / "long.py"
    long.write_text("#" * 100_001)
    with pytest.raises(UserError, match="over 100,000 characters"):
        slurm.file_of(job(words=["run", "--workload", str(long)]))


def test_the_comment_is_one_line_for_any_command():
    comment = job(words=HOSTILE).comment("next\nRegion: there")
    assert [line[:2] for line in comment.splitlines()] == ["# "] * 3
    assert shlex.split(comment.splitlines()[0][2:])[1] == HOSTILE[0]
