import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.router.tenants.salt import SaltDeriver
from pagelet.router.tenants.shared_prefix import SharedPrefixes, common_prefix_length
from pagelet.router.tenants.tenant import ANONYMOUS, Tenant

names = st.text(min_size=1, max_size=20)
salts = st.none() | st.text(max_size=20)


@given(one=st.tuples(names, salts), other=st.tuples(names, salts), secret=st.binary())
def test_two_tenants_never_share_a_salt_whatever_they_send(one, other, secret):
    deriver = SaltDeriver(secret)
    derived = [deriver.derive(Tenant(name), salt) for name, salt in (one, other)]
    assert (derived[0] == derived[1]) == (one == other)


@given(victim=names, client_salt=st.text(max_size=20))
def test_a_client_cannot_send_what_another_tenants_salt_is_made_of(victim, client_salt):
    deriver = SaltDeriver(b"secret")
    target = deriver.derive(Tenant(victim), client_salt)
    for guess in (target, victim, f"{victim}\0{client_salt}", f"={victim}"):
        assert deriver.derive(Tenant("attacker"), guess) != target


def test_without_the_secret_a_salt_cannot_be_told():
    acme = Tenant("acme")
    assert SaltDeriver(b"one").derive(acme, None) != SaltDeriver(b"two").derive(acme, None)
    assert SaltDeriver(b"one").derive(acme, None) == SaltDeriver(b"one").derive(acme, None)


def test_the_secret_is_read_from_a_file(tmp_path):
    (tmp_path / "secret").write_text(" one \n")
    derived = SaltDeriver.from_file(str(tmp_path / "secret")).derive(Tenant("a"), "x")
    assert derived == SaltDeriver(b"one").derive(Tenant("a"), "x")
    assert SaltDeriver.from_file(None).derive(Tenant("a"), None) is not None
    (tmp_path / "secret").write_text("\n")
    with pytest.raises(ValueError, match="empty"):
        SaltDeriver.from_file(str(tmp_path / "secret"))


def test_where_there_are_no_tenants_a_clients_salt_is_its_own():
    deriver = SaltDeriver(b"secret")
    assert deriver.derive(ANONYMOUS, None) is None
    assert deriver.derive(ANONYMOUS, "mine") == "mine"


tokens = st.lists(st.integers(0, 2), max_size=40)


@given(one=tokens, other=tokens, head=tokens)
def test_the_common_prefix_is_found(one, other, head):
    one, other = head + one, head + other
    length = common_prefix_length(one, other)
    assert one[:length] == other[:length]
    assert length == min(len(one), len(other)) or one[length] != other[length]


@given(prefixes=st.lists(tokens, max_size=4), prompt=tokens)
def test_tokens_within_a_declared_prefix_are_those_that_some_prefix_begins_with(prefixes, prompt):
    shared = SharedPrefixes(prefixes).num_tokens(prompt)
    beginnings = {tuple(prefix[:n]) for prefix in prefixes for n in range(len(prefix) + 1)}
    assert shared == max(
        (n for n in range(len(prompt) + 1) if tuple(prompt[:n]) in beginnings), default=0
    )
