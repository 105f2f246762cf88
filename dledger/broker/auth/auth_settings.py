"""Parsers of those settings of access control 2.0 whose values are texts (AuthConfig): users in JSON, and
lists of request codes. They are pure functions."""

from __future__ import annotations

import msgspec

from dledger.formats.state import User

MAX_CODES = 1000
"""Largest number of request codes in one list; more are an error."""
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
"""Maps a setting that names a class of RocketMQ to the class names, in lower case, that stand for what this
broker does."""
_INIT, _INNER = ("username", "password"), ("accessKey", "secretKey")


def parse_init_user(text: str) -> User:
    """Parse `{"username":"admin","password":"..."}` as a super user. Raises ValueError if the text has
    another form."""
    return _user(text, *_INIT)


def format_init_user(user: User | None) -> str:
    """Return the text from which `parse_init_user` makes this user."""
    return _text(user, *_INIT)


def parse_inner_user(text: str) -> User:
    """Parse `{"accessKey":"inner","secretKey":"..."}` as a super user. Raises ValueError if the text has
    another form."""
    return _user(text, *_INNER)


def format_inner_user(user: User | None) -> str:
    """Return the text from which `parse_inner_user` makes this user."""
    return _text(user, *_INNER)


def parse_codes(text: str) -> tuple[int, ...]:
    """Parse request codes that are separated by commas. Raises ValueError if one is not a number, or if there
    are more than MAX_CODES."""
    codes: list[int] = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        if not part.isascii() or not part.isdecimal() or len(part) > 9:
            raise ValueError(f"{part!r} is not a request code")
        codes.append(int(part))
    if len(codes) > MAX_CODES:
        raise ValueError(f"{len(codes)} request codes; the limit is {MAX_CODES}")
    return tuple(dict.fromkeys(codes))


def format_codes(codes: tuple[int, ...]) -> str:
    """Return the text from which `parse_codes` makes these codes."""
    return ",".join(map(str, codes))


def _user(text: str, name: str, secret: str) -> User:
    """Parse a user. The text contains a password, so no error message shows it."""
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
