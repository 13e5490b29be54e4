"""Experiment trackers are off: scripts that use them run, nothing is logged, and settings are still real."""

from __future__ import annotations

import os

import pytest

from pinchpoint.backends.sandbox.inert_objects import Inert, Settings

USES = {
    "wandb": """
        import argparse, importlib, os
        import wandb
        from wandb import init
        from wandb.integration.lightning import Thing
        import wandb.sdk.wandb_run as runs
        assert wandb.run is None
        wandb.login(key="secret")
        run = wandb.init(project="p", config={"lr": 0.1, "model": {"width": 8}})
        assert wandb.config.lr == 0.1 and run.config["model"]["width"] == 8 and wandb.run is run
        assert dict(wandb.config) == {"lr": 0.1, "model": {"width": 8}}
        wandb.config.epochs = 3
        wandb.config.update({"lr": 0.2}, allow_val_change=True)
        assert (run.config.epochs, run.config.get("lr"), "lr" in run.config) == (3, 0.2, True)
        try: wandb.config.nothing
        except AttributeError as error: assert "nothing" in str(error)
        else: raise AssertionError("a setting that was never set")
        run.log({"loss": 1.0}); wandb.log({"image": wandb.Image([1])}, step=3)
        wandb.watch(print, log="all"); wandb.define_metric("x"); wandb.save("model.pt")
        assert os.path.isdir(run.dir) and isinstance(run.name, str) and f"{run.id}-{run.url}"
        os.makedirs(os.path.join("runs", wandb.run.id, wandb.util.generate_id()))
        with wandb.init(config=argparse.Namespace(lr=0.3)) as other:
            assert other.config.lr == wandb.config.lr == 0.3
            assert "model" not in other.config
            wandb.summary["best"] = 1; other.summary["best"] = 2
            assert other.summary["best"] == 2
        assert wandb.run is None
        run.finish(); wandb.finish()
        class Callback(wandb.Callback, object):
            def on_end(self): return self.anything.at.all()
        Callback(1, a=2).on_end()
        assert not isinstance(3, wandb.Image) and not isinstance(3, (wandb.Image, runs.Run))
        try: raise ValueError
        except wandb.errors.CommError: raise AssertionError
        except ValueError: pass
        def f(x: wandb.Run | None = None): ...
        for each in wandb.Api().runs("x"): raise AssertionError
        assert wandb.util.is_x and float(wandb.x.y) == 0.0 and int(wandb.z) == 0 and len(wandb.q) == 0
        assert importlib.reload is not None
        seen = []
        choices = {"lr": {"values": [5, 6]}, "depth": {"value": 2}, "w": {"min": 1, "max": 9}}
        sweep = wandb.sweep({"method": "grid", "parameters": choices})
        def train():
            with wandb.init(config={"lr": 1, "other": 7}): seen.append(dict(wandb.config))
        wandb.agent(sweep, function=train, count=10)
        assert seen == [{"lr": 5, "other": 7, "depth": 2, "w": 1}], seen
    """,
    "mlflow": """
        import mlflow, mlflow.pytorch
        mlflow.set_tracking_uri("http://tracker.invalid"); mlflow.set_experiment("x"); mlflow.autolog()
        with mlflow.start_run(run_name="r") as run:
            mlflow.log_params({"a": 1}); mlflow.log_metric("x", 1.0, step=2)
            mlflow.pytorch.log_model(print, "m")
            assert run.info.run_id + "/x"
        @mlflow.trace
        def f(x): return x + 1
        @mlflow.trace(name="g")
        def g(x): return x + 2
        assert (f(1), g(1)) == (2, 3)
        client = mlflow.tracking.MlflowClient(); client.log_metric(run.info.run_id, "a", 1)
    """,
    "others": """
        import comet_ml, neptune, clearml, aim, swanlab, trackio, dvclive, codecarbon, weave
        from comet_ml import Experiment
        with Experiment(api_key="x").train() as e: e.log_metric("a", 1)
        run = neptune.init_run(project="x")
        run["params"] = {"lr": 1}; run["train/loss"].append(1.0); run.stop()
        from clearml import Task
        task = Task.init(project_name="a", task_name="b")
        args = task.connect({"lr": 2}); assert args["lr"] == 2
        task.get_logger().report_scalar("a", "b", 1, 2)
        run = aim.Run(); run["hparams"] = {"a": 1}; run.track(1.0, name="x")
        assert swanlab.init(config={"a": 1}).config.a == 1
        trackio.init(project="x", config={"b": 2}); assert trackio.config["b"] == 2
        trackio.log({}); trackio.finish()
        with dvclive.Live() as live: live.log_metric("a", 1); live.next_step()
        @codecarbon.track_emissions()
        def f(): return 4
        assert f() == 4
        @weave.op
        def g(): return 5
        assert g() == 5
        from tensorboardX import SummaryWriter
        with SummaryWriter("logs") as writer: writer.add_scalar("a", 1, 2)
        import os
        assert not os.path.exists("logs")
    """,
    "probing": """
        import importlib, importlib.util, sys
        assert importlib.util.find_spec("not_installed_at_all") is None
        for name in ("wandb", "mlflow", "comet_ml", "neptune", "clearml", "aim"):
            before = importlib.util.find_spec(name)
            assert name not in sys.modules
            others = [finder for finder in sys.meta_path if type(finder).__name__ != "Trackers"]
            real = [finder.find_spec(name, None) for finder in others if hasattr(finder, "find_spec")]
            assert (before is None) == (not any(real)), name
            importlib.import_module(name).anything()
            assert importlib.util.find_spec(name) is not None  # as for every imported module
        import wandb
        from packaging.version import Version
        assert Version(wandb.__version__) > Version("0.1")
        assert not hasattr(wandb, "__wrapped__") and not hasattr(wandb.log, "__array__")
    """,
}


@pytest.mark.parametrize("source", USES.values(), ids=USES)
def test_a_script_that_tracks_runs_without_its_tracker(run_sandboxed, source):
    end = run_sandboxed(source + "\n        step()", steps=1)
    assert (end.kind, end.fault) == ("stopped", None)
    assert os.listdir(end.work) == ["train.py"]


def test_a_module_of_the_users_own_is_not_taken_for_a_tracker(run_sandboxed, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "aim.py").write_text("TARGET = 42")
    end = run_sandboxed("import aim\nassert aim.TARGET == 42\nstep()", steps=1)
    assert (end.kind, end.fault) == ("stopped", None)


def test_an_installed_tracker_is_replaced_as_well(run_sandboxed, tmp_path):
    package = tmp_path / "site-packages" / "wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('the real tracker ran')")
    info = tmp_path / "site-packages" / "wandb-0.17.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wandb\nVersion: 0.17.3\n")
    source = """
        import importlib.util
        assert importlib.util.find_spec("wandb").origin.endswith("wandb/__init__.py")
        import wandb
        assert wandb.__version__ == "0.17.3"
        wandb.init().log({})
        step()
    """
    end = run_sandboxed(source, steps=1, env={"PYTHONPATH": str(tmp_path / "site-packages")})
    assert (end.kind, end.fault) == ("stopped", None)


def test_the_environment_switches_trackers_off(run_sandboxed):
    source = """
        import os
        assert os.environ["WANDB_MODE"] == "disabled" and os.environ["NEPTUNE_MODE"] == "debug"
        uri = os.environ["MLFLOW_TRACKING_URI"]
        assert uri.startswith("file:") and "scratch" in uri
        assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
        step()
    """
    end = run_sandboxed(source, steps=1, env={"WANDB_MODE": "online"})
    assert (end.kind, end.fault) == ("stopped", None)


@pytest.mark.slow
def test_transformers_lightning_and_the_hub_report_and_upload_nothing(run_sandboxed):
    pytest.importorskip("transformers")
    pytest.importorskip("pytorch_lightning")
    source = """
        from transformers.integrations import get_reporting_integration_callbacks, is_wandb_available
        import importlib.metadata
        try: installed = bool(importlib.metadata.version("wandb"))
        except importlib.metadata.PackageNotFoundError: installed = False
        assert is_wandb_available() == installed
        assert get_reporting_integration_callbacks("wandb") == []
        assert get_reporting_integration_callbacks(["wandb", "mlflow", "tensorboard"]) == []

        from huggingface_hub import HfApi, create_repo, upload_folder
        create_repo("me/model", private=True); upload_folder(repo_id="me/model", folder_path=".")
        api = HfApi()
        api.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id="me/model")
        api.delete_repo("me/model")
        assert api.model_info.__module__ == "huggingface_hub.hf_api"  # reading still works

        from pytorch_lightning.loggers import CometLogger, CSVLogger, MLFlowLogger
        from pytorch_lightning.loggers import TensorBoardLogger, WandbLogger
        loggers = [WandbLogger(project="p"), MLFlowLogger(), CometLogger()]
        for logger in [*loggers, TensorBoardLogger("logs"), CSVLogger("csv")]:
            logger.log_hyperparams({"lr": 1})
            logger.log_metrics({"loss": 1.0}, step=0)
            assert logger.experiment is not None and logger.version is not None
            logger.save()
            logger.finalize("success")
        TensorBoardLogger("logs").log_hyperparams({"lr": 1}, metrics={"loss": 1.0})
        from torch.utils.tensorboard import SummaryWriter
        SummaryWriter("runs").add_scalar("loss", 1.0, 0)
        step()
    """
    end = run_sandboxed(source, steps=1)
    assert (end.kind, end.fault) == ("stopped", None)
    assert os.listdir(end.work) == ["train.py"]


def test_an_inert_object_stands_for_nothing():
    inert = Inert()
    assert bool(inert)
    assert (len(inert), list(inert), 3 in inert, int(inert), float(inert)) == (0, [], False, 0, 0.0)
    assert f"{inert}/x" == "offline/x" == inert + "/x"
    assert range(inert) == range(0)
    assert inert.a.b["c"](1, d=2) is not None
    assert inert(len) is len
    with pytest.raises(AttributeError):
        inert.__array__  # noqa: B018


def test_settings_are_items_and_attributes():
    settings = Settings(a=1)
    settings.b = 2
    settings.setdefaults({"a": 5, "c": 3})
    assert settings.as_dict() == {"a": 1, "b": 2, "c": 3}
