"""The commands, their arguments and their help. What they do is in the modules they import when called.

Invariant: a user's mistake ends in one message on stderr and exit code 2, never in a traceback; and a command
that does not train imports neither torch nor the scheduler before it is known to be needed.
"""

import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from roll_operator.cli.cluster.target import JobOnCluster, find_folder, find_target
from roll_operator.controller.cluster.errors import ApiError
from roll_operator.controller.folder import RunError

app = typer.Typer(
    name="roll",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
ledger_app = typer.Typer(
    help="The durable record of a run's samples.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(ledger_app, name="ledger")


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"roll {version('roll-operator')}")
        raise typer.Exit


@app.callback()
def _roll(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Reinforcement learning of language models, with a durable record of every sample."""


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Folder of a run on this machine, e.g. runs/arithmetic, or its name; or a job on a cluster.",
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Namespace of a job on a cluster. [default: the kubeconfig's]",
    ),
]
OutputOption = Annotated[
    Output, typer.Option("--format", "-o", help="text for people, json for scripts.")
]


@app.command()
def run(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="File of an RLJob.")],
    output: Annotated[
        Path | None, typer.Option(help="Folder of the run. [default: runs/<job>]")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete an earlier run and start over.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Port of the scheduler on 127.0.0.1. [default: a free one]"
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a key of the spec; may be repeated."
        ),
    ] = None,
) -> None:
    """Train on this machine. Run again, it continues where it was.

    Ctrl-C stops it at a checkpoint, and so does closing the terminal: start it with nohup, or in tmux, to let it go on.

    Example: roll run examples/arithmetic.yaml --output runs/first --set steps=20
    """
    from roll_operator.cli.run import run_job

    raise typer.Exit(run_job(job, output, fresh=fresh, port=port, overrides=set_ or []))


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of RLJobs.")],
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Judge also what concerns pods.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Report everything that is wrong with a job, with file, line and key. Exit code 2 if anything is.

    Example: roll validate examples/*.yaml
    """
    from roll_operator.cli.validate import validate_files

    raise typer.Exit(validate_files(files, cluster=cluster, as_json=output is Output.JSON))


@app.command()
def reward(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="File of an RLJob.")],
    response: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="What is judged. [default: each row's own answer, and one of another row]",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of the training data.")] = 3,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a key of the spec; may be repeated."
        ),
    ] = None,
) -> None:
    """Try a job's rewards on a few rows, without a model. Exit code 1 if some answer could not be judged.

    Example: roll reward examples/custom_reward/job.yaml --response 7
    """
    from roll_operator.cli.reward import try_reward

    raise typer.Exit(try_reward(job, rows=rows, response=response, overrides=set_ or []))


@app.command()
def submit(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="File of an RLJob.")],
    namespace: NamespaceOption = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="More files beside the job that its code needs; may be repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the job and list its files; send nothing.")
    ] = False,
) -> None:
    """Train on a cluster: send a job, with the local files that it names.

    Example: roll submit examples/custom_reward/job.yaml -n team-a
    """
    from roll_operator.cli.submit import submit_job

    raise typer.Exit(submit_job(job, namespace, include=include or [], dry_run=dry_run))


@app.command()
def status(
    run: RunArgument, namespace: NamespaceOption = None, output: OutputOption = Output.TEXT
) -> None:
    """Show where a run stands, with its processes or pods, restarts and figures.

    Examples: roll status runs/arithmetic -o json; kubectl roll status arithmetic -n team-a
    """
    target, as_json = find_target(run, namespace), output is Output.JSON
    if isinstance(target, JobOnCluster):
        from roll_operator.cli.cluster.status import show_cluster_status

        raise typer.Exit(show_cluster_status(target.name, target.namespace, as_json=as_json))
    from roll_operator.cli.status import show_status

    raise typer.Exit(show_status(target, as_json=as_json))


@app.command()
def samples(
    run: RunArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show again and again.")] = False,
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="GROUP.INDEX", help="The whole story of one sample."),
    ] = None,
    ended: Annotated[
        bool,
        typer.Option(
            "--ended", help="Those that ended last, with prompt, answer and reward, instead."
        ),
    ] = False,
    reward_below: Annotated[
        float | None,
        typer.Option("--reward-below", help="Of those that ended: with a smaller reward only."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Samples shown, at most.")] = 50,
    screen: Annotated[bool, typer.Option("--screen", hidden=True)] = False,
    while_stdin: Annotated[bool, typer.Option("--while-stdin", hidden=True)] = False,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show where every sample in flight is, what was said in those that ended, or all about one.

    Examples: roll samples runs/arithmetic --follow; roll samples runs/arithmetic --ended --reward-below 0.5;
    kubectl roll samples arithmetic --id 17.3
    """
    target, as_json = find_target(run, namespace), output is Output.JSON
    screen = screen or (follow and not as_json and sys.stdout.isatty())
    if isinstance(target, JobOnCluster):
        from roll_operator.cli.cluster.remote import run_in_scheduler

        asked = ["samples", target.name, "--limit", str(limit), "--format", output.value]
        asked += ["--follow", "--while-stdin"] if follow else []
        asked += ["--screen"] if screen else []
        asked += ["--id", id] if id is not None else []
        asked += ["--ended"] if ended else []
        asked += [f"--reward-below={reward_below}"] if reward_below is not None else []
        raise typer.Exit(run_in_scheduler(target.name, target.namespace, asked))
    from roll_operator.cli.samples import show_ended, show_sample, show_samples

    if id is not None:
        raise typer.Exit(show_sample(target, id, as_json=as_json))
    if ended or reward_below is not None:
        raise typer.Exit(
            show_ended(target, limit=limit, reward_below=reward_below, as_json=as_json)
        )
    raise typer.Exit(
        show_samples(
            target,
            follow=follow,
            limit=limit,
            as_json=as_json,
            screen=screen,
            while_stdin=while_stdin,
        )
    )


@app.command()
def logs(
    run: RunArgument,
    pod: Annotated[
        str | None,
        typer.Argument(help="A process, e.g. trainer-0, or trainer-0.1 for its attempt 1."),
    ] = None,
    role: Annotated[str | None, typer.Option(help="Only processes of this role.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as lines are written.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "--tail", min=0, help="Last lines per log; 0: all.")
    ] = 0,
    previous: Annotated[
        bool,
        typer.Option(
            "--previous", "-p", help="On a cluster: of the container that ran before in the pod."
        ),
    ] = False,
    namespace: NamespaceOption = None,
) -> None:
    """Print what the processes or pods of a run wrote.

    Examples: roll logs runs/arithmetic --role inference --follow; kubectl roll logs arithmetic trainer-0
    """
    target = find_target(run, namespace)
    if isinstance(target, JobOnCluster):
        from roll_operator.cli.cluster.logs import Choice, show_cluster_logs

        choice = Choice(pod, role, lines, previous)
        raise typer.Exit(show_cluster_logs(target.name, target.namespace, choice, follow=follow))
    if previous:
        raise RunError(f"{run} has the logs of all attempts: name one, e.g. trainer-0.0")
    from roll_operator.cli.logs import show_logs

    raise typer.Exit(show_logs(target, pod=pod, role=role, follow=follow, lines=lines))


@app.command()
def replay(run: RunArgument, output: OutputOption = Output.TEXT) -> None:
    """Train again from the recorded batches alone and compare the weights. Exit code 1 if they differ.

    It starts from the oldest checkpoint after which nothing was trained under other settings than the last ones.

    Example: roll replay runs/arithmetic
    """
    from roll_operator.cli.replay import replay_run

    raise typer.Exit(replay_run(find_folder(run).path, as_json=output is Output.JSON))


@ledger_app.command("verify")
def ledger_verify(
    run: RunArgument, namespace: NamespaceOption = None, output: OutputOption = Output.TEXT
) -> None:
    """Audit a run from its ledger alone: every sample has one end, none is trained twice. Exit code 1 if not.

    Example: roll ledger verify runs/arithmetic
    """
    target = find_target(run, namespace)
    if isinstance(target, JobOnCluster):
        from roll_operator.cli.cluster.remote import run_in_scheduler

        asked = ["ledger", "verify", target.name, "--format", output.value]
        raise typer.Exit(run_in_scheduler(target.name, target.namespace, asked))
    from roll_operator.cli.ledger import verify_ledger

    raise typer.Exit(verify_ledger(target, as_json=output is Output.JSON))


def main() -> None:
    # gRPC's own log would write over the live view when a scheduler goes away.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    _guarded(app)


def _guarded(command: Callable[[], object]) -> NoReturn:
    """Mistakes become messages; a closed pipe (`| head`) is no mistake."""
    try:
        command()
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except ApiError as error:
        from roll_operator.cli.cluster.connection import explain

        print(f"error: {explain(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)
