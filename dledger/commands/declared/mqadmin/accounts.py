"""Declares commands of access control: users and policies (version 2.0), and accounts in plain_acl.yml
(version 1.0, as in mqadmin 4.9)."""

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
    Option("r", "resources", "Resources, such as Topic:a,Group:b; * at the end is a wildcard", required=True),
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
        ONE_BROKER, ONE_CLUSTER, Option("f", "filter", "Only names that contain this text"),
    ), "accounts:list_user"),
    Command("copyUser", "Copy users from one broker to another", (
        Option("f", "fromBroker", "Address of the source broker", required=True),
        Option("t", "toBroker", "Address of the target broker", required=True),
        Option("u", "usernames", "Only these, separated by commas"),
    ), "accounts:copy_user"),
    Command("createAcl", "Set the permissions of a subject", _ACL, "accounts:create_acl"),
    Command("updateAcl", "Change the permissions of a subject", _ACL, "accounts:update_acl"),
    Command("deleteAcl", "Delete the permissions of a subject", (
        ONE_CLUSTER, ONE_BROKER, _SUBJECT, Option("r", "resources", "Only for this resource"),
    ), "accounts:delete_acl"),
    Command("getAcl", "Show the permissions of a subject", (
        ONE_BROKER, ONE_CLUSTER, Option("s", "subject", "Subject, as User:name"),
    ), "accounts:get_acl"),
    Command("listAcl", "List the permissions of subjects", (
        ONE_BROKER, ONE_CLUSTER, Option("s", "subject", "Only subjects that contain this text"),
        Option("r", "resource", "Only resources that contain this text"),
    ), "accounts:list_acl"),
    Command("copyAcl", "Copy permissions from one broker to another", (
        Option("f", "fromBroker", "Address of the source broker", required=True),
        Option("t", "toBroker", "Address of the target broker", required=True),
        Option("s", "subjects", "Only these, separated by commas"),
    ), "accounts:copy_acl"),
    Command("updateAclConfig", "Create an account, or change it (1.0)", (
        ONE_BROKER, ONE_CLUSTER, _KEY, Option("s", "secretKey", "Secret key", required=True),
        Option("w", "whiteRemoteAddress", "Address that needs no signature"),
        Option("i", "defaultTopicPerm", "Permission for topics that are not named: DENY, PUB, SUB or "
                "PUB|SUB"),
        Option("u", "defaultGroupPerm", "Permission for groups that are not named"),
        Option("t", "topicPerms", "As topicA=DENY,topicB=SUB; replaces all previous ones"),
        Option("g", "groupPerms", "As groupA=DENY,groupB=SUB; replaces all previous ones"),
        Option("m", "admin", "Whether it may administer: true or false"),
    ), "accounts:update_account"),
    Command("deleteAclConfig", "Delete an account (1.0)", (ONE_BROKER, ONE_CLUSTER, _KEY),
            "accounts:delete_account",
            alias="deleteAccessConfig"),
    Command("clusterAclConfigVersion", "Show which version of its accounts a broker has (1.0)",
            (ONE_BROKER, ONE_CLUSTER), "accounts:account_versions"),
    Command("updateGlobalWhiteAddr", "Set the addresses that need no account (1.0)", (
        ONE_BROKER, ONE_CLUSTER,
        Option("g", "globalWhiteRemoteAddresses", "Such as 10.10.103.*,192.168.0.*", required=True),
        Option("p", "aclFileFullPath", "File of the broker that holds them"),
    ), "accounts:white_addresses"),
    Command("getAclConfig", "List accounts (1.0)", (ONE_BROKER, ONE_CLUSTER), "accounts:accounts",
            alias="getAccessConfigSubCommand"),
)  # fmt: skip
