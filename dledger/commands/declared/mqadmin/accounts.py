"""Commands of access control: users and policies (2.0), and accounts of plain_acl.yml (1.0: mqadmin 4.9)."""

from __future__ import annotations

from dledger.commands.declared.mqadmin.options import (
    ONE_BROKER,
    ONE_CLUSTER,
    Command,
)
from dledger.commands.mqadmin.options import Option

_NAME = Option("u", "username", "User name", required=True)
_SUBJECT = Option("s", "subject", "Subject, as User:name", required=True)
_ACL = (
    ONE_CLUSTER, ONE_BROKER, _SUBJECT,
    Option("r", "resources", "Resources, as Topic:a,Group:b, with * at the end", required=True),
    Option("a", "actions", "Actions: All, Pub, Sub, Create, Update, Delete, Get, List", required=True),
    Option("i", "sourceIp", "Only from these addresses"),
    Option("d", "decision", "Allow or Deny", required=True),
)  # fmt: skip
_KEY = Option("a", "accessKey", "Access key", required=True)

COMMANDS = (
    Command("createUser", "Create a user", (
        ONE_CLUSTER, ONE_BROKER, _NAME, Option("p", "password", "Password", required=True),
        Option("t", "userType", "Normal or Super"),
    ), "accounts:create_user"),
    Command("updateUser", "Change a user", (
        ONE_CLUSTER, ONE_BROKER, _NAME, Option("p", "password", "Password", one_of="what"),
        Option("t", "userType", "Normal or Super", one_of="what"),
        Option("s", "userStatus", "enable or disable", one_of="what"),
    ), "accounts:update_user"),
    Command("deleteUser", "Delete a user", (ONE_CLUSTER, ONE_BROKER, _NAME), "accounts:delete_user"),
    Command("getUser", "Show a user", (
        ONE_BROKER, ONE_CLUSTER, Option("u", "username", "User name"),
    ), "accounts:get_user"),
    Command("listUser", "List users", (
        ONE_BROKER, ONE_CLUSTER, Option("f", "filter", "Only names with this in them"),
    ), "accounts:list_user"),
    Command("copyUser", "Copy users from one broker to another", (
        Option("f", "fromBroker", "Address of the broker that has them", required=True),
        Option("t", "toBroker", "Address of the broker that gets them", required=True),
        Option("u", "usernames", "Only these, with commas between"),
    ), "accounts:copy_user"),
    Command("createAcl", "Say what a subject may do", _ACL, "accounts:create_acl"),
    Command("updateAcl", "Change what a subject may do", _ACL, "accounts:update_acl"),
    Command("deleteAcl", "Say no more what a subject may do", (
        ONE_CLUSTER, ONE_BROKER, _SUBJECT, Option("r", "resources", "Only of this resource"),
    ), "accounts:delete_acl"),
    Command("getAcl", "Show what a subject may do", (
        ONE_BROKER, ONE_CLUSTER, Option("s", "subject", "Subject, as User:name"),
    ), "accounts:get_acl"),
    Command("listAcl", "List what subjects may do", (
        ONE_BROKER, ONE_CLUSTER, Option("s", "subject", "Only subjects with this in them"),
        Option("r", "resource", "Only resources with this in them"),
    ), "accounts:list_acl"),
    Command("copyAcl", "Copy what subjects may do from one broker to another", (
        Option("f", "fromBroker", "Address of the broker that has it", required=True),
        Option("t", "toBroker", "Address of the broker that gets it", required=True),
        Option("s", "subjects", "Only these, with commas between"),
    ), "accounts:copy_acl"),
    Command("updateAclConfig", "Create an account, or change it (1.0)", (
        ONE_BROKER, ONE_CLUSTER, _KEY, Option("s", "secretKey", "Secret key", required=True),
        Option("w", "whiteRemoteAddress", "Address that needs no signature"),
        Option("i", "defaultTopicPerm", "Of topics that are not named: DENY, PUB, SUB or PUB|SUB"),
        Option("u", "defaultGroupPerm", "Of groups that are not named"),
        Option("t", "topicPerms", "As topicA=DENY,topicB=SUB; instead of all that was there"),
        Option("g", "groupPerms", "As groupA=DENY,groupB=SUB; instead of all that was there"),
        Option("m", "admin", "Whether it may administer: true or false"),
    ), "accounts:update_account"),
    Command("deleteAclConfig", "Delete an account (1.0)", (ONE_BROKER, ONE_CLUSTER, _KEY),
            "accounts:delete_account",
            alias="deleteAccessConfig"),
    Command("clusterAclConfigVersion", "Show which version of its accounts a broker has (1.0)",
            (ONE_BROKER, ONE_CLUSTER), "accounts:account_versions"),
    Command("updateGlobalWhiteAddr", "Say who needs no account (1.0)", (
        ONE_BROKER, ONE_CLUSTER,
        Option("g", "globalWhiteRemoteAddresses", "As 10.10.103.*,192.168.0.*", required=True),
        Option("p", "aclFileFullPath", "The broker's file that says so"),
    ), "accounts:white_addresses"),
    Command("getAclConfig", "List accounts (1.0)", (ONE_BROKER, ONE_CLUSTER), "accounts:accounts",
            alias="getAccessConfigSubCommand"),
)  # fmt: skip
