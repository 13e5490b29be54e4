"""Process pools in a sandboxed script: same results as with processes, all of them from this process."""

from __future__ import annotations


def test_pools_run_their_functions_in_this_process_with_the_results_of_real_ones(run_sandboxed):
    source = """
        import concurrent.futures, multiprocessing, os
        from multiprocessing.pool import Pool

        def square(x): return x * x, os.getpid()
        def total(x, y=1): return x + y
        def fail(x): raise ValueError(f"bad {x}")
        def remember(*values): seen.extend(values)

        here, seen, answers, errors = os.getpid(), [], [], []
        squares = [(0, here), (1, here), (4, here)]
        with multiprocessing.Pool(2, remember, ("first", "second")) as pool:
            assert seen == ["first", "second"]
            assert pool.map(square, range(3)) == squares
            assert list(pool.imap(square, range(3), chunksize=2)) == squares
            assert sorted(pool.imap_unordered(square, range(3))) == squares
            assert pool.starmap(total, [(1, 2), (3,)]) == [3, 4]
            assert pool.apply(total, (1,), {"y": 5}) == 6
            result = pool.apply_async(total, (1, 2), callback=answers.append)
            assert result.get(timeout=5) == 3 and result.ready() and result.successful() and answers == [3]
            result = pool.apply_async(fail, (7,), error_callback=errors.append)
            assert not result.successful() and str(errors[0]) == "bad 7"
            assert pool.map_async(total, [1, 2]).get() == [2, 3]
            for broken in (result.get, lambda: pool.map(fail, [1]), lambda: next(pool.imap(fail, [1]))):
                try:
                    broken()
                except ValueError as error:
                    assert "bad" in str(error)
                else:
                    raise AssertionError("no error")

        pool = Pool()
        pool.imap(remember, ["third"])
        pool.close()
        pool.join()
        assert seen[2:] == ["third"]
        assert multiprocessing.get_context("spawn").Pool(1).map(square, [1]) == [(1, here)]
        try:
            pool.map(square, [1])
        except ValueError as error:
            assert str(error) == "Pool not running"

        with concurrent.futures.ProcessPoolExecutor(2, initializer=remember, initargs=("fourth",)) as pool:
            assert seen[3:] == ["fourth"]
            assert list(pool.map(square, range(3), chunksize=2)) == squares
            futures = [pool.submit(total, i) for i in range(3)]
            assert [f.result() for f in concurrent.futures.as_completed(futures)] != []
            assert isinstance(pool.submit(fail, 2).exception(), ValueError)
        with multiprocessing.pool.ThreadPool(2) as threads:
            assert threads.map(total, [1, 2]) == [2, 3]
        step()
    """
    end = run_sandboxed(source, steps=1)
    assert (end.kind, end.fault, end.refused) == ("stopped", None, [])


def test_a_step_inside_a_pool_stops_the_script(run_sandboxed):
    source = """
        from multiprocessing import Pool
        with Pool(2) as pool:
            pool.map(lambda _: step(), range(5))
        raise AssertionError("not stopped")
    """
    assert run_sandboxed(source).kind == "stopped"
