"""Queues of libraries that Debian has: their own code makes and ends jobs,
the console tells the same."""

import pytest

from tests.cli.calls import Console
from tests.contract.at_work_debian import delayed_job, laravel, symfony
from tests.contract.figures import counts, figures, sampled_error
from tests.servers import value, wait_until


def discovered(console: Console, preset: str) -> list[str]:
    (found,) = console.done("discover", "--json").json["found"]
    assert found["preset"] == preset
    queues: list[str] = found["queues"]
    return queues


@pytest.mark.long
def test_delayed_job(console: Console) -> None:
    theirs = delayed_job(console.url)
    theirs.need()
    theirs.run("CREATE TABLE public.ran (n integer)")
    own = theirs.do(
        """
        migrate
        2.times { |n| Delayed::Job.enqueue Send.new(n, true), queue: "mail" }
        Delayed::Worker.new(quiet: true).work_off
        4.times { |n| Delayed::Job.enqueue Send.new(n, false), queue: "mail" }
        Delayed::Job.enqueue Send.new(9, false), queue: "report", run_at: Time.now + 3600
        Delayed::Job.reserve(Delayed::Worker.new)
        tell Delayed::Job.ready_to_run("nobody", Delayed::Worker.max_run_time).count
        """
    )
    assert discovered(console, "delayed-job") == ["mail", "report"]
    console.done("adopt", "jobs", "--preset", "delayed-job")
    console.done("adopt", "mail", "--preset", "delayed-job", "--queue", "mail")
    assert figures(console, "jobs") == counts(own, 1, 1, 0, 2, None)
    assert figures(console, "mail") == counts(own, 0, 1, 0, 2, None)
    count, sample = sampled_error(console, "jobs")
    assert (count, sample.startswith("no host")) == (2, True)
    answer = console("requeue", "jobs", "--yes")
    assert (answer.status, "failed_at" in answer.err) == (4, True)
    (claim,) = console.done("messages", "jobs", "--state", "claimed", "--json").json["messages"]
    assert claim["claimed_by"].startswith("host:")
    console.done("release", "jobs", "--force", "--yes")
    theirs.do("Delayed::Worker.new(quiet: true).work_off")
    assert value(console.url, "SELECT string_agg(n::text, ' ' ORDER BY n) FROM ran") == "0 1 2 3"


@pytest.mark.long
def test_what_a_killed_worker_of_delayed_job_left_is_run_once_under_others(
    console: Console,
) -> None:
    theirs = delayed_job(console.url)
    theirs.need()
    theirs.run("CREATE TABLE public.ran (n integer)")
    # One job it is in the midst of; more, as its threads' names say, it has reserved.
    theirs.leave(
        """
        migrate
        40.times { |n| Delayed::Job.enqueue Send.new(n, false) }
        29.times { |n| worker = Delayed::Worker.new; worker.name = "thread #{n}";
            Delayed::Job.reserve(worker) }
        Delayed::Worker.new(quiet: true).start
        """
    )
    theirs.run(
        "UPDATE delayed_jobs SET locked_at = locked_at - interval '1 h' WHERE locked_at IS NOT NULL"
    )
    console.done("adopt", "jobs", "--preset", "delayed-job")
    assert figures(console, "jobs") == counts(10, 0, 30, 30, 0, None)
    worker = "Delayed::Worker.sleep_delay = 0.1; tell 1; Delayed::Worker.new(quiet: true).start"
    with theirs.process(worker), theirs.process(worker):
        console.done("release", "jobs", "--unknown", "--yes")
        left = "SELECT count(*) FROM their_ruby.delayed_jobs"
        wait_until(lambda: value(console.url, left) == 0, "its workers ran what was released")
    assert value(console.url, "SELECT count(*) || ' ' || count(DISTINCT n) FROM ran") == "40 40"


@pytest.mark.long
def test_laravel(console: Console) -> None:
    theirs = laravel(console.url)
    theirs.need()
    ready, scheduled, claimed = theirs.do(
        """
        migrate();
        for ($n = 0; $n < 5; $n++) $queue->push("Send", ["n" => $n], "mail");
        $queue->later(3600, "Send", ["n" => 7], "mail"); $queue->push("Report", [], "report");
        for ($n = 0; $n < 2; $n++) $queue->pop("mail");
        $of = fn () => $capsule->getConnection()->table("jobs")->where("queue", "mail");
        tell([$queue->size("mail") - 3, $of()->where("available_at", ">", time())->count(),
            $of()->whereNotNull("reserved_at")->count()]);
        """
    )
    assert discovered(console, "laravel") == ["mail", "report"]
    console.done("adopt", "jobs", "--preset", "laravel")
    console.done("adopt", "mail", "--preset", "laravel", "--queue", "mail")
    assert figures(console, "mail") == counts(ready, scheduled, claimed, 0, None, None)
    assert figures(console, "jobs") == counts(4, 1, 2, 0, None, None)
    answer = console("requeue", "jobs", "--yes")
    assert (answer.status, "queue:retry" in answer.err) == (4, True)
    theirs.run("UPDATE jobs SET reserved_at = reserved_at - 3600 WHERE reserved_at IS NOT NULL")
    assert figures(console, "mail")["stuck"] == 2
    console.done("release", "mail", "--unknown", "--yes")
    taken = theirs.do(
        """
        $taken = [];
        while ($job = $queue->pop("mail")) $taken[] = [$job->payload()["data"]["n"],
            $job->attempts()];
        tell($taken);
        """
    )
    assert sorted(taken) == [[0, 2], [1, 2], [2, 1], [3, 1], [4, 1]]


@pytest.mark.long
def test_what_a_killed_worker_of_laravel_left_is_run_once_under_others(console: Console) -> None:
    theirs = laravel(console.url)
    theirs.need()
    theirs.run("CREATE TABLE public.ran (n integer)")
    theirs.do(
        """
        migrate();
        for ($n = 0; $n < 30; $n++) $queue->push("Send", ["n" => $n], "mail");
        """
    )
    left = [theirs.leave('work("mail");') for _ in range(2)]
    console.done("adopt", "jobs", "--preset", "laravel")
    assert figures(console, "jobs") == counts(28, 0, 2, 0, None, None)
    assert console.done("release", "jobs", "--dry-run", "--json").json["plan"]["count"] == 0
    theirs.run("UPDATE jobs SET reserved_at = reserved_at - 3600 WHERE reserved_at IS NOT NULL")
    with theirs.process('work("mail");'), theirs.process('work("mail");'):
        console.done("release", "jobs", "--unknown", "--yes")
        unfinished = "SELECT count(*) FROM their_php.jobs"
        wait_until(lambda: value(console.url, unfinished) == 0, "its workers ran all")
    assert sorted(left) == [0, 1]
    assert value(console.url, "SELECT count(*) || ' ' || count(DISTINCT n) FROM ran") == "30 30"


@pytest.mark.long
def test_what_a_killed_worker_of_symfony_left_comes_back_by_itself(console: Console) -> None:
    theirs = symfony(console.url)
    theirs.need()
    theirs.run("CREATE TABLE public.ran (n integer)")
    theirs.do('transport("mail")->setup(); for ($n = 0; $n < 20; $n++) send("mail", $n);')
    assert theirs.leave('work("mail");') == 0
    console.done("adopt", "mail", "--preset", "symfony")
    assert figures(console, "mail") == counts(19, 0, 1, 0, None, None)
    with theirs.process('work("mail");'), theirs.process('work("mail");'):
        wait_until(lambda: value(console.url, "SELECT count(*) FROM ran") == 19, "the others")
        assert console("release", "mail", "--yes").status == 4
        assert figures(console, "mail") == counts(0, 0, 1, 0, None, None)
        theirs.run("UPDATE messenger_messages SET delivered_at = delivered_at - interval '2 h'")
        wait_until(lambda: value(console.url, "SELECT count(*) FROM ran") == 20, "what was left")
    assert value(console.url, "SELECT count(DISTINCT n) FROM ran") == 20


@pytest.mark.long
def test_symfony(console: Console) -> None:
    theirs = symfony(console.url)
    theirs.need()
    own = theirs.do(
        r"""
        $mail = transport("mail"); $mail->setup();
        for ($n = 0; $n < 5; $n++) $mail->send("{\"n\": $n}", ["type" => "App\Send"]);
        $mail->send("{}", ["type" => "App\Send"], 3600000); transport("failed")->send("{}",
            ["type" => "App\Send"]);
        $mail->get(); $mail->ack($mail->get()["id"]);
        tell($mail->getMessageCount());
        """
    )
    assert discovered(console, "symfony") == ["failed", "mail"]
    console.done("adopt", "mail", "--preset", "symfony", "--queue", "mail")
    console.done("adopt", "all", "--preset", "symfony")
    assert figures(console, "mail") == counts(own, 1, 1, 0, None, None)
    assert figures(console, "all")["ready"] == own + 1
    (claim,) = console.done("messages", "mail", "--state", "claimed", "--json").json["messages"]
    assert claim["title"] == "App\\Send"
    for verb, words in {
        "release": "redeliver_timeout",
        "requeue": "messenger:failed:retry",
    }.items():
        answer = console(verb, "mail", "--yes")
        assert (answer.status, words in answer.err) == (4, True)
    theirs.run("UPDATE messenger_messages SET delivered_at = delivered_at - interval '2 h'")
    assert figures(console, "mail")["ready"] == theirs.do(
        'tell(transport("mail")->getMessageCount());'
    )
