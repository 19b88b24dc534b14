from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.protocol.openai.errors import ApiError
from pagelet.protocol.router import ModelRoute, Pool
from pagelet.router.models import ModelTable, PoolRef
from pagelet.router.tenants.tenant import ANONYMOUS, Tenant


def route(name=None, aliases=(), weights=(100,)):
    pools = [Pool(name=f"p{i}", weight=weight, replicas=["x"]) for i, weight in enumerate(weights)]
    return ModelRoute(name=name, aliases=list(aliases), pools=pools)


def names(table, tenant=ANONYMOUS):
    return [model.id for model in table.list_models(tenant).data]


def test_names_and_aliases_of_several_models_are_one_list():
    table = ModelTable([route("small", ["gpt-4", "default"]), route("large")])
    assert sorted(names(table)) == ["default", "gpt-4", "large", "small"]
    asked = table.resolve("gpt-4", ANONYMOUS)
    assert (asked.asked, asked.name, asked.route) == ("gpt-4", "small", 0)
    assert table.resolve("large", ANONYMOUS).route == 1
    assert table.get_model("gpt-4", ANONYMOUS).root == "small"


def test_an_unknown_name_gets_404_that_lists_those_there_are():
    table = ModelTable([route("small", ["tiny"]), route("large")])
    for ask in (table.resolve, table.get_model):
        with pytest.raises(ApiError, match="'small', 'tiny', 'large'") as error:
            ask("nothing", ANONYMOUS)
        assert error.value.status == 404
        assert error.value.detail.code == "model_not_found"


def test_a_tenant_sees_and_uses_only_its_models_under_any_of_their_names():
    table = ModelTable([route("small", ["tiny"]), route("large")])
    tenant = Tenant("acme", models=frozenset({"small"}))
    assert names(table, tenant) == ["small", "tiny"]
    assert table.resolve("tiny", tenant).name == "small"
    with pytest.raises(ApiError, match="may not use") as error:
        table.resolve("large", tenant)
    assert error.value.status == 403
    with pytest.raises(ApiError) as unknown:
        table.resolve("none", tenant)
    assert unknown.value.status == 404
    assert "large" not in str(unknown.value)


def test_replicas_bring_names_and_the_names_outlive_them():
    table = ModelTable([route(None, ["alias"]), route("given")])
    pool = PoolRef(0, 0)
    assert sorted(names(table)) == ["alias", "given"]
    held = table.resolve("whatever", ANONYMOUS)
    assert (held.route, held.name) == (0, "alias")
    assert ModelTable([route()]).label(0) == "unnamed"
    assert table.upstream_name(held, pool) == "whatever"
    table.learn(pool, "r1", ["llama", "llama-8b"], 4096)
    table.learn(pool, "r2", ["llama"], 2048)
    assert sorted(names(table)) == ["alias", "given", "llama", "llama-8b"]
    assert table.get_model("alias", ANONYMOUS).max_model_len == 2048
    with pytest.raises(ApiError):
        table.resolve("whatever", ANONYMOUS)
    table.forget(pool, "r1")
    table.forget(pool, "r2")
    assert table.resolve("llama", ANONYMOUS).route == 0
    assert table.get_model("llama", ANONYMOUS).max_model_len is None
    table.learn(pool, "r3", ["other"], 2048)
    assert "llama" not in names(table)


def test_replicas_are_asked_by_a_name_that_they_know():
    table = ModelTable([route("public", ["alias"])])
    pool = PoolRef(0, 0)
    asked = table.resolve("alias", ANONYMOUS)
    table.learn(pool, "r1", ["internal", "second"], None)
    assert table.upstream_name(asked, pool) == "internal"
    table.learn(pool, "r1", ["internal", "public"], None)
    assert table.upstream_name(asked, pool) == "public"
    table.learn(pool, "r1", ["alias", "public"], None)
    assert table.upstream_name(asked, pool) == "alias"


def test_a_given_name_wins_over_one_that_replicas_bring():
    table = ModelTable([route(None), route("taken")])
    table.learn(PoolRef(0, 0), "r", ["taken", "free"], None)
    assert table.resolve("taken", ANONYMOUS).route == 1
    assert table.resolve("free", ANONYMOUS).route == 0


@pytest.mark.parametrize(
    ("routes", "words"),
    [
        ([route("a"), route("a")], "'a' is given to two"),
        ([route("a", ["b"]), route("c", ["b"])], "'b' is given to two"),
        ([route("a", weights=(0, 0))], "weight above 0"),
        ([ModelRoute(name="a", pools=[Pool(), Pool()])], "name of its own"),
    ],
)
def test_what_cannot_be_meant_is_refused(routes, words):
    with pytest.raises(ValueError, match=words):
        ModelTable(routes)


def split(table, count=4000, available=None):
    model = table.resolve("m", ANONYMOUS)
    pools = {PoolRef(0, 0), PoolRef(0, 1), PoolRef(0, 2)} if available is None else available
    keys = [b"key %d" % number for number in range(count)]
    return [table.choose_pool(model, lambda key=key: key, pools) for key in keys]


def test_conversations_are_split_by_weight():
    counts = Counter(pool.pool for pool in split(ModelTable([route("m", weights=(90, 10, 0))])))
    assert counts[2] == 0
    assert 300 <= counts[1] <= 500  # 400 are expected, with a deviation of 19


def test_a_conversation_stays_where_it_is_when_a_canary_grows():
    before = split(ModelTable([route("m", weights=(90, 10))]))
    after = split(ModelTable([route("m", weights=(50, 50))]))
    assert all(
        b.pool == a.pool or (b.pool, a.pool) == (0, 1) for b, a in zip(before, after, strict=True)
    )


@given(key=st.binary(), available=st.sets(st.integers(0, 2)))
def test_a_pool_without_replicas_gives_its_requests_to_the_others(key, available):
    table = ModelTable([route("m", weights=(60, 30, 10))])
    model = table.resolve("m", ANONYMOUS)
    every = {PoolRef(0, number) for number in range(3)}
    some = {PoolRef(0, number) for number in available}
    chosen = table.choose_pool(model, lambda: key, some)
    assert chosen in (some or every)
    wanted = table.choose_pool(model, lambda: key, every)
    if wanted in some or not some:
        assert chosen == wanted


def test_an_adapter_is_a_model_of_its_own_that_has_one_name_everywhere():
    given = route("small", ["tiny"], weights=(50, 50))
    given.adapters = ["sql"]
    table = ModelTable([given])
    table.learn(PoolRef(0, 0), "r1", ["internal", "sql"], 2048, {"sql": "digest"})
    table.learn(PoolRef(0, 1), "r2", ["internal"], 2048)
    assert sorted(names(table)) == ["small", "sql", "tiny"]
    model = table.get_model("sql", ANONYMOUS)
    assert (model.root, model.parent) == ("small", "small")
    assert table.get_model("tiny", ANONYMOUS).parent is None
    asked = table.resolve("sql", ANONYMOUS)
    assert (asked.name, asked.adapter) == ("sql", "sql")
    pools = [PoolRef(0, 0), PoolRef(0, 1)]
    assert [table.upstream_name(asked, pool) for pool in pools] == ["sql", "sql"]
    assert [table.adapter_digest(asked, pool) for pool in pools] == ["digest", None]
    chosen = {table.choose_pool(asked, lambda key=key: b"%d" % key, pools) for key in range(50)}
    assert chosen == {PoolRef(0, 0)}, "the other one's replicas do not have it"
    assert table.adapter_digest(table.resolve("small", ANONYMOUS), pools[0]) is None


def test_a_name_that_is_told_while_its_request_waits_is_what_it_turns_out_to_be():
    table = ModelTable([route(None)])
    sql, base = (table.find(name, ANONYMOUS) for name in ("sql", "base"))
    assert (sql.name, sql.adapter) == ("unnamed", None)
    table.learn(PoolRef(0, 0), "r", ["base", "sql"], None, {"sql": "digest"})
    sql, base = table.renewed(sql), table.renewed(base)
    assert (sql.name, sql.adapter) == ("sql", "sql")
    assert (base.name, base.adapter) == ("base", None)
    assert table.upstream_name(sql, PoolRef(0, 0)) == "sql"
    table.learn(PoolRef(0, 0), "r", ["base"], None)
    assert table.renewed(sql) == sql, "the base does not answer for an adapter that went"


def test_leave_to_use_a_model_is_no_leave_to_use_its_adapters():
    table = ModelTable([route(None)])
    table.learn(PoolRef(0, 0), "r", ["base", "ours", "theirs"], None, {"ours": "1", "theirs": "2"})
    for allowed in ("base", "ours"):
        tenant = Tenant("acme", models=frozenset({allowed}))
        assert names(table, tenant) == [allowed]
        table.resolve(allowed, tenant)
        for other in {"base", "ours", "theirs"} - {allowed}:
            with pytest.raises(ApiError, match="may not use"):
                table.resolve(other, tenant)
    table.forget(PoolRef(0, 0), "r")
    assert table.resolve("ours", ANONYMOUS).adapter == "ours", "as it was when the last one went"
