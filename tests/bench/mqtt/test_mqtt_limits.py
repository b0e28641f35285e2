"""Shares of bytes and places, and warnings about what others send."""

import logging
import re
import threading
import time
from pathlib import Path

from waiting import HANG_SECONDS, InThread, wait_until

from fedpfl.bench.mqtt import direct, frames, http_bytes, http_server, server_side
from fedpfl.bench.mqtt.limits import MAX_SENDERS, Budget, Complaints


def most(budget, account):
    """Have an account take all that it gets; return how much that is."""
    claim = budget.claim(account)
    while claim.take(1):
        pass
    return claim.amount


def test_an_account_gets_no_more_than_is_still_free():
    budget = Budget(100)
    taken = [most(budget, name) for name in "abcde"]
    assert taken == [50, 25, 13, 6, 3]  # and the next one gets something, too
    assert budget.held == 97
    assert most(budget, "a") == 0


def test_an_account_gets_no_more_than_its_share():
    budget = Budget(100, each=10)
    assert [most(budget, "a"), most(budget, "b")] == [10, 10]


def test_what_is_released_is_free():
    budget = Budget(100)
    claim = budget.claim("a")
    assert claim.take(50)
    assert not claim.take(1)
    claim.add(70)  # what cannot be refused
    assert budget.held == 120
    claim.release()
    claim.release()
    assert (budget.held, most(budget, "b")) == (0, 50)


def test_a_claim_waits_for_room_up_to_its_time():
    budget = Budget(100)
    first, second = budget.claim("a"), budget.claim("a")
    assert first.take(50)
    assert not second.take(50, until=time.monotonic() + 0.05)
    waits = InThread(second.take, 50, time.monotonic() + HANG_SECONDS)
    wait_until(lambda: budget.waiting)
    first.release()
    assert waits.result()
    assert (second.amount, budget.held) == (50, 50)


def test_claims_that_grow_step_by_step_all_come_to_their_end():
    """Together they want five times what there is, and none gives anything back before it has everything."""
    budget, most_held = Budget(200, overdraft=True), []

    def grow(account):
        claim = budget.claim(account)
        for _ in range(100):
            assert claim.take(1, time.monotonic() + HANG_SECONDS)
            most_held.append(budget.held)
        claim.release()

    grown = [InThread(grow, str(number)) for number in range(10)]
    for one in grown:
        one.result()
    assert budget.held == 0
    assert max(most_held) <= 200 + 100  # one claim beyond the total


def test_no_more_than_one_claim_at_a_time_goes_beyond_the_total():
    budget = Budget(10, overdraft=True)
    assert most(budget, "a") == 5
    claims = [budget.claim("a") for _ in range(3)]
    waits = [InThread(claim.take, 20, time.monotonic() + HANG_SECONDS) for claim in claims]
    wait_until(lambda: sum(not one.running for one in waits) == 1)
    (favoured,) = [claim for claim in claims if claim.favoured]
    assert favoured.take(20)
    favoured.release()
    wait_until(lambda: sum(not one.running for one in waits) == 2)
    (favoured,) = [claim for claim in claims if claim.favoured]
    favoured.release()
    assert all(one.result() for one in waits)


def test_warnings_are_one_a_second_about_each_sender_and_printable(caplog):
    now = [0.0]
    complain = Complaints(logging.getLogger("fedpfl.test"), lambda: now[0])
    for sender in ("a", "a", "b"):
        complain(sender, "%s sent %s", sender, "\x1b[2J\nforged" + "x" * 500)
    now[0] = 1.0
    complain("a", "again")
    lines = [record.getMessage() for record in caplog.records]
    assert [line[:6] for line in lines] == ["a sent", "b sent", "again"]
    assert all(line.isprintable() and len(line) <= 200 for line in lines)
    for number in range(2 * MAX_SENDERS):
        complain(str(number), "x")
    assert len(complain._last) == MAX_SENDERS


def test_threads_share_a_budget_without_losing_count():
    budget = Budget(1000)

    def work(account):
        for _ in range(200):
            claim = budget.claim(account)
            claim.take(3)
            claim.add(1)
            claim.release()

    threads = [threading.Thread(target=work, args=(str(number % 3),)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert (budget.held, budget.free, dict(budget.accounts)) == (0, 1000, {})


def test_the_page_has_the_limits():
    page = (Path(__file__).parents[3] / "docs" / "contributing" / "bridge.md").read_text(encoding="utf-8")
    rows = {}
    for line in page.splitlines():
        if line.endswith(" MiB |"):
            _, process, parts, total, _ = (cell.strip() for cell in line.split("|"))
            amounts, connections = re.findall(r"(\d+) MiB", parts), re.findall(r"128 KiB for each of (\d+)", parts)
            rows[process] = [int(number) * 2**20 for number in amounts] + [
                int(number) * 2**17 for number in connections
            ]
            assert total == f"{sum(rows[process]) // 2**20} MiB", process
    message, for_each = frames.MAX_MESSAGE_BYTES, http_server.STEP_BYTES + http_bytes.MAX_HEAD_BYTES
    assert rows == {
        "server's side, for one device": [frames.MAX_SENDER_BYTES, server_side.MAX_RESPONSES_BYTES],
        "server's side, for all devices": [server_side.MAX_BYTES, server_side.MAX_BYTES],
        "device's side": [
            http_server.MAX_BODIES_BYTES + message, frames.MAX_SENDER_BYTES, http_server.MAX_CONNECTIONS * for_each
        ],
        "`direct`": [
            direct.MAX_BODIES_BYTES + message, direct.MAX_BYTES, 2 * direct.MAX_BYTES,
            direct.MAX_CONNECTIONS * for_each,
        ],
    }  # fmt: skip
