"""A session delivers every result once it is acknowledged, whatever happens to the scheduler."""

import asyncio
import os
import signal
import time
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from roll_api.rollout import Retry
from roll_wire import PROTOCOL
from roll_wire.columns import unpack_results
from roll_wire.ports import free_port
from roll_wire.session_pb2 import (
    Ack,
    Cancel,
    Drain,
    Failure,
    LeaseId,
    Policy,
    PolicyVersion,
    Refused,
    Task,
    Unit,
    Welcome,
)
from roll_workers import errors
from roll_workers.runtime import stream
from roll_workers.runtime.session import Cancelled, Draining, PolicyChange, Session, lease_key
from scheduler import Scheduler, config_for, run, task


def numbers(items: list) -> list[int]:
    return [item.lease.number for item in items]


def test_a_result_travels_with_all_that_was_said_about_it() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        await scheduler.start()
        async with Session(config_for(scheduler.port), pool="reward", credits=8) as session:
            scheduler.assign(task(1, turn=2))
            received = await anext(session)
            assert isinstance(received, Task)
            session.result(
                received,
                b"payload",
                tokens=3,
                oldest=(1, 4),
                newest=PolicyVersion(lineage=1, number=5),
                reward=0.0,
                done=True,
            )
            await scheduler.until(scheduler.results)
            [result] = scheduler.results()
            assert result.unit == received.unit
            assert (result.stage, result.turn, result.payload) == ("score", 2, b"payload")
            assert (result.tokens, result.oldest.number, result.newest.number) == (3, 4, 5)
            assert result.has_reward
            assert result.done
            [hello] = scheduler.hellos
            assert (hello.role, hello.pool, hello.credits, hello.protocol) == (
                "reward",
                "reward",
                8,
                PROTOCOL,
            )
        await scheduler.kill()

    run(main)


def test_a_scheduler_of_another_release_is_refused_in_one_sentence() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        scheduler.welcome = Welcome(term=1)  # as the first release says it: without a number
        await scheduler.start()
        with pytest.raises(
            errors.Refused,
            match=f"protocol 1, this worker {PROTOCOL}: use images of one release",
        ):
            async with Session(config_for(scheduler.port), pool="reward", credits=8):
                pass
        await scheduler.kill()

    run(main)


def test_who_gives_up_before_the_welcome_leaves_no_server_behind() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        scheduler.before_welcome.clear()
        await scheduler.start()
        session = Session(config_for(scheduler.port), pool="reward", credits=8)
        entering = asyncio.create_task(session.__aenter__())
        await scheduler.until(lambda: scheduler.hellos)
        host, _, port = session.address.partition(":")
        _, there = await asyncio.open_connection(host, int(port))
        there.close()
        entering.cancel()
        await asyncio.wait({entering})
        assert entering.cancelled()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))
        await scheduler.kill()

    run(main)


def test_unacknowledged_results_are_sent_again_to_the_next_scheduler() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        scheduler.acknowledge = None
        await scheduler.start()
        async with Session(config_for(scheduler.port), pool="reward", credits=8) as session:
            scheduler.assign(*(task(n) for n in range(4)))
            tasks = [await anext(session) for _ in range(4)]
            for each in tasks[:2]:
                session.result(each, b"before")
            await scheduler.until(lambda: len(scheduler.results()) == 2)
            await scheduler.kill()
            session.result(tasks[2], b"while it was away")

            second = Scheduler(scheduler.port)
            await second.start()
            await second.until(lambda: len(second.results()) == 3)
            assert numbers(second.results()) == [0, 1, 2]
            # The lease that is still worked on, and those whose results follow.
            assert sorted(numbers(second.hellos[0].held)) == [0, 1, 2, 3]
            assert second.hellos[0].incarnation == scheduler.hellos[0].incarnation
            session.result(tasks[3], b"after")
            await second.until(lambda: len(second.results()) == 4)

            await second.kill()
            third = Scheduler(scheduler.port)
            await third.start()
            await third.until(lambda: third.hellos)
            assert not third.hellos[0].held, "acknowledged results are forgotten"
            await third.kill()

    run(main)


def test_a_session_waits_for_a_scheduler_that_comes_late() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        entering = asyncio.create_task(
            Session(config_for(scheduler.port), pool="reward", credits=1).__aenter__()
        )
        done, _ = await asyncio.wait({entering}, timeout=0.5)
        assert not done
        await scheduler.start()
        session = await entering
        assert session.connected
        await session.__aexit__(None, None, None)
        await scheduler.kill()

    run(main)


def test_a_stream_that_the_scheduler_cancels_is_opened_again() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        scheduler.aborts = 2
        await scheduler.start()
        async with Session(config_for(scheduler.port), pool="reward", credits=1) as session:
            assert session.welcomed
            assert len(scheduler.hellos) == 3
        await scheduler.kill()

    run(main)


def test_a_worker_tries_to_come_back_more_than_once_before_its_samples_are_given_away() -> None:
    grace = Retry().reconnect_grace_seconds
    assert grace > 2 * stream.LAST_DELAY, "however long the scheduler was away"


def test_what_happens_between_hello_and_welcome_is_told_after_it() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        await scheduler.start()
        async with Session(config_for(scheduler.port), pool="policy", credits=8) as session:
            scheduler.assign(task(1))
            received = await anext(session)
            await scheduler.kill()
            second = Scheduler(scheduler.port)
            second.before_welcome.clear()
            await second.start()
            await second.until(lambda: second.hellos)
            session.holding((1, 3))
            session.result(received, b"")
            second.before_welcome.set()
            await second.until(second.results)
            assert [m.holding.version.number for m in second.messages if m.HasField("holding")] == [
                3
            ]
            assert numbers(second.results()) == [1]
            await second.kill()

    run(main)


def test_leases_fenced_at_welcome_are_dropped_and_the_role_is_told() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        await scheduler.start()
        async with Session(config_for(scheduler.port), pool="reward", credits=8) as session:
            scheduler.assign(task(1), task(2))
            first, second = await anext(session), await anext(session)
            await scheduler.kill()
            newer = Scheduler(scheduler.port)
            newer.welcome = Welcome(protocol=PROTOCOL, term=2, fenced=[LeaseId(term=1, number=1)])
            await newer.start()
            event = await anext(session)
            assert isinstance(event, Cancelled)
            assert [lease_key(lease) for lease in event.leases] == [(1, 1)]
            assert session.term == 2
            session.result(first, b"too late")
            session.result(second, b"in time")
            await newer.until(newer.results)
            assert numbers(newer.results()) == [2]
            await newer.kill()

    run(main)


def test_a_fenced_result_is_dropped_and_its_episode_forgotten() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        scheduler.acknowledge = Ack.FENCED
        await scheduler.start()
        async with Session(config_for(scheduler.port), pool="environment", credits=8) as session:
            scheduler.assign(task(1, group=9, stage="reset"))
            received = await anext(session)
            session.result(received, b"", resident=True)
            event = await anext(session)
            assert isinstance(event, Cancelled)
            assert [(unit.group, unit.index) for unit in event.episodes] == [(9, 0)]
            await scheduler.kill()
            newer = Scheduler(scheduler.port)
            await newer.start()
            await newer.until(lambda: newer.hellos)
            assert not newer.hellos[0].held
            await newer.kill()

    run(main)


def test_an_episode_between_turns_is_named_as_resident_until_its_next_turn() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        await scheduler.start()
        async with Session(config_for(scheduler.port), pool="environment", credits=8) as session:
            scheduler.assign(task(1, group=9, stage="reset"))
            session.result(await anext(session), b"", resident=True)
            await scheduler.until(scheduler.results)
            scheduler.say(policy=Policy())  # comes after the acknowledgement
            assert isinstance(await anext(session), PolicyChange)
            await scheduler.kill()
            second = Scheduler(scheduler.port)
            await second.start()
            await second.until(lambda: second.hellos)
            [held] = second.hellos[0].held
            assert held.resident
            assert (held.unit.group, held.lease.number, held.stage) == (9, 1, "reset")

            second.assign(task(2, group=9, stage="step", turn=1))
            step = await anext(session)
            await second.kill()
            third = Scheduler(scheduler.port)
            third.welcome = Welcome(protocol=PROTOCOL, term=3, evicted=[Unit(group=9, index=0)])
            await third.start()
            await third.until(lambda: third.hellos)
            [held] = third.hellos[0].held
            assert (held.resident, held.lease.number, held.turn) == (False, 2, 1)
            event = await anext(session)
            assert isinstance(event, Cancelled)
            assert event.episodes[0].group == 9
            session.result(step, b"", done=True)
            await third.until(third.results)
            await third.kill()

    run(main)


def test_partials_are_sent_again_before_the_result_that_builds_upon_them() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        scheduler.acknowledge = None
        await scheduler.start()
        async with Session(config_for(scheduler.port), pool="policy", credits=8) as session:
            scheduler.assign(task(1, stage="generate"))
            received = await anext(session)
            session.progress(received, 2, b"ab", (1, 1), (1, 1))
            await scheduler.until(lambda: scheduler.messages)
            await scheduler.kill()
            session.progress(received, 3, b"c", (1, 2), (1, 2))
            session.result(received, b"d", tokens=1)

            second = Scheduler(scheduler.port)
            await second.start()
            await second.until(second.results)
            partials = [i for m in second.messages for i in m.progress.items]
            assert [i.partial for i in partials] == [b"ab", b"c"]
            assert [i.partial_tokens for i in partials] == [2, 1]
            [result] = unpack_results(second.messages[-1].results)
            assert (result.payload, result.base_tokens) == (b"d", 3)
            await second.kill()

    run(main)


def test_signs_of_life_are_gathered_into_few_messages() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        await scheduler.start()
        async with Session(config_for(scheduler.port), pool="policy", credits=8) as session:
            scheduler.assign(task(1), task(2))
            tasks = [await anext(session), await anext(session)]
            for tokens in range(1000):
                for each in tasks:
                    session.progress(each, tokens)
            await scheduler.until(lambda: scheduler.messages)
            [message] = scheduler.messages
            assert [item.tokens for item in message.progress.items] == [999, 999]
        await scheduler.kill()

    run(main)


def test_a_repeated_assign_is_one_task_and_a_cancelled_one_is_none() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        await scheduler.start()
        async with Session(config_for(scheduler.port), pool="reward", credits=8) as session:
            scheduler.assign(task(1), task(2))
            scheduler.assign(task(1))
            scheduler.say(cancel=Cancel(leases=[LeaseId(term=1, number=2)]))
            scheduler.say(policy=Policy(version=PolicyVersion(lineage=1, number=3)))
            events = []
            while not (events and isinstance(events[-1], PolicyChange)):
                events.append(await anext(session))
            assert numbers([e for e in events if isinstance(e, Task)])[0] == 1
            assert len([e for e in events if isinstance(e, Task) and e.lease.number == 1]) == 1
            assert numbers(session.held()) == [1]
            assert events[-1].policy.version.number == 3
        await scheduler.kill()

    run(main)


def test_draining_returns_what_is_held_and_ends_the_iteration() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        await scheduler.start()
        async with Session(config_for(scheduler.port), pool="reward", credits=8) as session:
            scheduler.assign(task(1), task(2))
            seen = []
            async for event in session:
                seen.append(event)
                if len(seen) == 2:
                    scheduler.say(drain=Drain(reason="scale-down"))
                if isinstance(event, Draining):
                    session.result(seen[0], b"finished")
                    scheduler.assign(task(3))
                    session.release()
            assert seen[-1] == Draining("scale-down")
        assert numbers(scheduler.results()) == [1]
        returned = [f for f in scheduler.failures() if f.kind == Failure.RETURNED]
        assert numbers(returned)[0] == 2
        assert any(
            m.WhichOneof("message") == "credit" and m.credit.credits == 0
            for m in scheduler.messages
        )
        await scheduler.kill()

    run(main)


def test_sigterm_drains_even_when_the_scheduler_is_gone() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        await scheduler.start()
        async with Session(config_for(scheduler.port), pool="reward", credits=8) as session:
            scheduler.assign(task(1))
            received = await anext(session)
            await scheduler.kill()
            started = time.monotonic()
            os.kill(os.getpid(), signal.SIGTERM)
            async for event in session:
                if isinstance(event, Draining):
                    assert event.reason == "SIGTERM"
                    session.result(received, b"")
            assert time.monotonic() - started < 5

    run(main)


def test_sigterm_before_the_first_welcome_ends_at_once() -> None:
    async def main() -> None:
        session = Session(config_for(free_port()), pool="reward", credits=8)
        asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)
        async with session:
            assert [event async for event in session] == [Draining("SIGTERM")]

    run(main)


@pytest.mark.parametrize("pool", ["reward", "policy"])
def test_health_is_serving_once_the_worker_can_be_of_use(pool: str, tmp_path: Path) -> None:
    async def main() -> None:
        ready = tmp_path / "ready"
        ready.touch()  # by a process that was here before
        scheduler = Scheduler(free_port())
        await scheduler.start()
        async with (
            Session(config_for(scheduler.port, ready=ready), pool=pool, credits=8) as session,
            grpc.aio.insecure_channel(session.address) as channel,
        ):
            assert scheduler.hellos[0].address == session.address
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            if pool == "policy":
                assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
                assert not ready.exists()
                session.holding((1, 0))
            while (await watch.read()).status != health_pb2.HealthCheckResponse.SERVING:
                pass
            assert ready.exists(), "for the kubelet"
            watch.cancel()
        await scheduler.kill()

    run(main)


@pytest.mark.parametrize(("reason", "code"), [("fenced", 3), ("job-ended", 0)])
def test_a_refused_worker_stops_for_good(reason: str, code: int) -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        scheduler.refuse = Refused(reason=reason, message="pod-uid is gone")
        await scheduler.start()
        with pytest.raises(errors.Refused, match="pod-uid is gone") as refused:
            async with Session(config_for(scheduler.port), pool="reward", credits=8):
                pass
        assert refused.value.exit_code == code
        await scheduler.kill()

    run(main)


def test_being_refused_in_the_middle_ends_the_iteration_with_the_reason() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        await scheduler.start()
        with pytest.raises(errors.Refused, match="job-ended"):
            async with Session(config_for(scheduler.port), pool="reward", credits=8) as session:
                scheduler.say(refused=Refused(reason="job-ended"))
                async for _ in session:
                    pass
        await scheduler.kill()

    run(main)


def test_data_that_changed_is_the_users_to_mend_and_no_restart_is_tried() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        scheduler.refuse = Refused(reason="data-changed", message="restore it, or use --fresh")
        await scheduler.start()
        with pytest.raises(errors.UserError, match="--fresh"):
            async with Session(config_for(scheduler.port), pool="environment", credits=8):
                pass
        await scheduler.kill()

    run(main)


def test_thousands_of_results_share_messages_and_cost_microseconds() -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        await scheduler.start()
        async with Session(config_for(scheduler.port), pool="reward", credits=2048) as session:
            for start in range(0, 2048, 64):
                scheduler.assign(*(task(n) for n in range(start, start + 64)))
            tasks = [await anext(session) for _ in range(2048)]
            payload = b"x" * 8192
            started = time.process_time()
            for each in tasks:
                session.result(each, payload, tokens=4, reward=1.0)
            assert (time.process_time() - started) / 2048 < 100e-6
            await scheduler.until(lambda: len(scheduler.results()) == 2048)
            carrying = [m for m in scheduler.messages if m.results.leases]
            assert all(len(m.results.leases) <= 64 for m in carrying)
            assert len(carrying) < 100
            assert numbers(scheduler.results()) == list(range(2048))
        await scheduler.kill()

    run(main)
