"""Settings of access control 2.0 as texts (AuthConfig): users in JSON, lists of request codes. Pure."""

from __future__ import annotations

import msgspec

from dledger.formats.state import User

MAX_CODES = 1000
"""Most request codes in one list; more are an error."""
_AUTH = "org.apache.rocketmq.auth"
AUTH_CLASSES = {
    name: tuple(f"{_AUTH}.{one}".lower() for one in classes)
    for name, classes in {
        "authenticationProvider": ("authentication.provider.DefaultAuthenticationProvider",),
        "authenticationMetadataProvider": ("authentication.provider.LocalAuthenticationMetadataProvider",),
        "authenticationStrategy": (
            "authentication.strategy.StatelessAuthenticationStrategy",
            "authentication.strategy.StatefulAuthenticationStrategy",
        ),
        "authorizationProvider": ("authorization.provider.DefaultAuthorizationProvider",),
        "authorizationMetadataProvider": ("authorization.provider.LocalAuthorizationMetadataProvider",),
        "authorizationStrategy": (
            "authorization.strategy.StatelessAuthorizationStrategy",
            "authorization.strategy.StatefulAuthorizationStrategy",
        ),
    }.items()
}
"""Settings that name classes of RocketMQ -> the classes that behave as this broker does, in lower case."""
_INIT, _INNER = ("username", "password"), ("accessKey", "secretKey")


def parse_init_user(text: str) -> User:
    """`{"username":"admin","password":"..."}`: a super user. ValueError."""
    return _user(text, *_INIT)


def format_init_user(user: User | None) -> str:
    """Inverse of `parse_init_user`."""
    return _text(user, *_INIT)


def parse_inner_user(text: str) -> User:
    """`{"accessKey":"inner","secretKey":"..."}`: a super user. ValueError."""
    return _user(text, *_INNER)


def format_inner_user(user: User | None) -> str:
    """Inverse of `parse_inner_user`."""
    return _text(user, *_INNER)


def parse_codes(text: str) -> tuple[int, ...]:
    """Request codes, with commas between them. ValueError."""
    codes: list[int] = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        if not part.isascii() or not part.isdecimal() or len(part) > 9:
            raise ValueError(f"{part!r} is not a request code")
        codes.append(int(part))
    if len(codes) > MAX_CODES:
        raise ValueError(f"{len(codes)} request codes; the limit is {MAX_CODES}")
    return tuple(dict.fromkeys(codes))


def format_codes(codes: tuple[int, ...]) -> str:
    """Inverse of `parse_codes`."""
    return ",".join(map(str, codes))


def _user(text: str, name: str, secret: str) -> User:
    """Parse a user. The value is a secret, so no error shows it."""
    expected = f'expected {{"{name}":"...","{secret}":"..."}}'
    try:
        found = msgspec.json.decode(text, type=dict[str, object])
        user = {"name": found[name], "password": found[secret], "superuser": True}
        made = msgspec.convert(user, User)
    except (msgspec.MsgspecError, KeyError):
        raise ValueError(expected) from None
    if not made.name.strip() or not made.password.strip():
        raise ValueError(f"{expected}, neither of them blank")
    return made


def _text(user: User | None, name: str, secret: str) -> str:
    return "" if user is None else msgspec.json.encode({name: user.name, secret: user.password}).decode()
