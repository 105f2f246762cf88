"""Commands about NameServers, such as getNamesrvConfig, updateKvConfig and wipeWritePerm."""

from __future__ import annotations

from dledger.client import ClientError
from dledger.commands.mqadmin.call import Call


async def namesrv_config(call: Call) -> None:
    async def show(address: str) -> None:
        settings = await call.admin.namesrv.settings(address)
        lines = [f"============{address}============"]
        lines += [f"{key:<50}=  {value}" for key, value in settings.items()]
        call.out.item("namesrvs", {"address": address, "settings": settings}, "\n".join(lines))

    await call.each(call.admin.namesrv.addresses, show)


async def update_namesrv_config(call: Call) -> None:
    key, value = call.given.text("k"), call.given.text("v")

    async def change(address: str) -> None:
        await call.admin.namesrv.change_settings(address, {key: value})

    if await call.each(call.admin.namesrv.addresses, change):
        listed = f"[{', '.join(call.namesrv.split(';'))}]" if call.namesrv else ""
        call.out.line(f"update name server config success!{listed}\n{key} : {value}")


async def update_kv(call: Call) -> None:
    await call.admin.namesrv.put(call.given.text("s"), call.given.text("k"), call.given.text("v"))
    call.out.line("create or update kv config to namespace success.")


async def delete_kv(call: Call) -> None:
    await call.admin.namesrv.delete(call.given.text("s"), call.given.text("k"))
    call.out.line("delete kv config from namespace success.")


async def wipe(call: Call) -> None:
    await _write_perm(call, "wipe")


async def add(call: Call) -> None:
    await _write_perm(call, "add")


async def _write_perm(call: Call, verb: str) -> None:
    name, ours = call.given.text("b"), call.admin.namesrv
    for address in ours.addresses:
        what = f"{verb} write perm of broker[{name}] in name server[{address}]"
        try:
            count = await (ours.wipe_write_perm if verb == "wipe" else ours.add_write_perm)(address, name)
        except ClientError as error:
            call.out.line(f"{what} Failed")
            call.fail(error)
            continue
        call.out.item("namesrvs", {"address": address, "topics": count}, f"{what} OK, {count}")
