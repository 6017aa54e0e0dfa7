"""`roll samples --id`: one sample's whole story, in the order in which it happened."""

from __future__ import annotations

from roll_operator.scheduler import offline, training
from roll_operator.scheduler.ledger.story import read_story
from roll_operator.scheduler.lifecycle import Stage
from roll_operator.scheduler.stages import StageGraph
from roll_wire.control_pb2 import SampleStory
from support.scheduler_world import MakeWorld, World


def story(job: World, group: int, index: int = 0) -> SampleStory:
    told = read_story(job.ledger.reader, job.settings.graph, group, index)
    assert told is not None
    assert [e.at for e in told.events] == sorted(e.at for e in told.events)
    return told


def events(job: World, group: int, index: int = 0) -> list[str]:
    return [e.what for e in story(job, group, index).events]


def first(job: World) -> int:
    return min(g.id for g in job.state.groups.values() if g.step)


def one_second(job: World) -> None:
    job.now += 1.0


def test_from_admission_to_the_checkpoint(world: MakeWorld) -> None:
    job = world()
    group = first(job)
    assert events(job, group) == ["admitted"]
    for stage in (Stage.RESET, Stage.GENERATE, Stage.SCORE):
        one_second(job)
        job.finish_all(stage)
    assert events(job, group) == ["admitted", "reset", "generate", "score"]
    job.train(1)
    assert events(job, group)[-1] == "trained(1)"
    job.commit_checkpoint()
    job.flush()
    told = story(job, group, 1)
    assert told.state.state == "committed(1)" and told.state.step == 1
    generated = told.events[2]
    assert generated.worker.startswith("inference") and generated.detail["versions"] == "0..0"
    assert generated.detail["tokens"] == "2" and "/" in generated.detail["lease"]
    assert told.events[3].detail["reward"] == "0.5"


def test_failures_and_partials_are_told(world: MakeWorld) -> None:
    job = world()
    group = first(job)
    job.finish_all(Stage.RESET)
    for worker, task in job.tasks(Stage.GENERATE, group):
        job.send_partial(worker, task, 3, again=False)
    one_second(job)
    job.finish_all(Stage.GENERATE, group, cause="timeout")
    told = story(job, group)
    assert [e.what for e in told.events] == ["admitted", "reset", "partial", "generate failed"]
    failed = told.events[-1].detail
    assert (failed["cause"], failed["attempt"], failed["message"]) == ("timeout", "1", "provoked")
    assert told.state.attempt == 2


def test_a_sample_that_was_replaced_ends_with_its_failure(world: MakeWorld) -> None:
    job = world(max_attempts=1, groups_per_step=1, group_size=1)
    group = first(job)
    job.finish_all(Stage.RESET)
    one_second(job)
    job.finish_all(Stage.GENERATE, cause="input")
    assert events(job, group) == ["admitted", "reset", "generate failed", "failed(input)"]
    job.run_to_the_end()
    assert events(job, group)[-1] == "failed(input)", "also after its group was trained"
    assert events(job, group, 1)[-1].startswith(("trained", "committed"))


def test_siblings_of_a_failed_sample_are_told_why_they_ended(world: MakeWorld) -> None:
    job = world(max_attempts=1, max_replacements=0)
    group = first(job)
    job.finish_all(Stage.RESET)
    worker, task = job.tasks(Stage.GENERATE, group)[0]
    one_second(job)
    job.finish(worker, task, cause="input")
    job.flush()
    assert events(job, group, task.index)[-1] == "failed(input)"
    assert events(job, group, 1 - task.index)[-1] == "cancelled(sibling)"


def test_every_life_of_an_episode_is_told(world: MakeWorld) -> None:
    job = world(graph=StageGraph(interactive=True, scored=False), groups_per_step=1, group_size=1)
    group = first(job)
    for stage in (Stage.RESET, Stage.GENERATE):
        one_second(job)
        job.finish_all(stage)
    one_second(job)
    job.finish_all(Stage.STEP, cause="replay")
    for stage in (Stage.RESET, Stage.GENERATE):
        one_second(job)
        job.finish_all(stage)
    one_second(job)
    job.finish_all(Stage.STEP, done=True)
    told = story(job, group)
    assert [(e.what, e.detail.get("life", "")) for e in told.events] == [
        ("admitted", ""), ("reset", "0"), ("generate", "0"), ("step failed", ""),
        ("reset", "1"), ("generate", "1"), ("step", "1"),
    ]  # fmt: skip
    assert told.state.state == "scored"


def test_filtered_evaluated_and_poisoned_samples(world: MakeWorld) -> None:
    job = world(filter_by="mean", filter_above=0.1, validation_every=9, max_batch_attempts=1)
    filtered = first(job)
    job.complete(filtered, rewards=[0.0])
    assert events(job, filtered)[-1] == "filtered"
    held_out = min(g.id for g in job.state.groups.values() if g.validation is not None)
    job.complete(held_out)
    assert events(job, held_out)[-1] == "evaluated(0)"
    for group in [g.id for g in job.state.groups.values() if g.step]:
        job.complete(group)
    training.acquire(*job.seat(), 1, job.now)
    job.flush()
    poison = job.state.batches[1].group_ids[0]
    assert events(job, poison)[-1] == "batched(1)"
    job.start_trainer()
    job.trainer_turn()
    job.flush()
    assert training.acquire(*job.seat(), 1, job.now) is None
    job.flush()
    assert events(job, poison)[-1] == "failed(poison)"


def test_what_is_left_of_a_pruned_sample(world: MakeWorld) -> None:
    job = world(keep_checkpoints=1, filter_by="mean", filter_above=0.1)
    filtered = first(job)
    job.complete(filtered, rewards=[0.0])
    trained = first(job)
    job.train(2)
    job.commit_checkpoint()
    job.flush()
    told = story(job, trained)
    assert told.state.state == "committed(1)" and not told.state.HasField("version")
    assert events(job, trained) == ["committed(1); its details were pruned"]
    assert events(job, filtered) == ["ended before step 2; its details were pruned"]


def test_there_is_no_story_of_what_never_was(world: MakeWorld) -> None:
    job = world()
    for group, index in ((99, 0), (first(job), 7), (first(job), -1)):
        assert read_story(job.ledger.reader, job.settings.graph, group, index) is None


def test_a_stopped_job_is_told_from_its_folder(world: MakeWorld) -> None:
    job = world()
    group = first(job)
    job.finish_all(Stage.RESET)
    told = offline.sample_story(job.folder, job.settings, group, 0)
    assert told is not None and [e.what for e in told.events] == ["admitted", "reset"]
    listed = offline.list_samples(job.folder, job.settings)
    assert listed.total == 4 and {s.stage for s in listed.samples} == {"generate"}
    assert not any(s.HasField("version") for s in (told.state, *listed.samples)), "no token yet"
    job.finish_all(Stage.GENERATE)
    told = offline.sample_story(job.folder, job.settings, group, 0)
    listed = offline.list_samples(job.folder, job.settings)
    assert told is not None
    for state in (told.state, *listed.samples):
        assert state.HasField("version") and state.version.number == 0
