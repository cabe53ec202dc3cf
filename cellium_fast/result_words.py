"""What results of tool calls say in passing: that waiting may help, that something was done.

The words stand here; `src/results.pyx` looks for them.
"""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


# Too many requests, bad gateway, service unavailable, gateway timeout, overloaded.
TRANSIENT_CODES = (429, 502, 503, 504, 529)
TRANSIENT_TEXT = 500        # characters of an error that are looked at

_CODE = rf"(?:{'|'.join(map(str, TRANSIENT_CODES))})\b"
_CODE_OF = rf"[\s_-]*(?:status|error)?[\s_-]*(?:code)?[\s:=#(\\\"']*{_CODE}"
_NOT_READY = (
    r"[\s_]*(?:is )?(?:currently |temporarily )?(?:at capacity|unavailable|overloaded|too busy)"
)
_TIME = r"(?:second|minute|hour|day)"
# A compiler's overloaded function and an argument's name are no such things.
_NO_FUNCTION = r"(?! (?:function|method|operator|constructor|member|name|call|[`'\"\u2018]))"
_NO_NAME = (
    r"(?<![`'\u2018]timeout)(?<!--timeout)(?!=|[\"']:)"
    r"(?! ?(?:must|should|cannot|option|argument|parameter|value|=))"
)

# What an error that waiting may cure says, whatever the case: how a word begins, and a regular
# expression of what follows.
TRANSIENT = {
    # limits of rate
    "rate": r"[\s_-]?limit| exceeded",
    "too": r"[\s_-]?many[\s_-]?requests| busy",
    "slow": r" down\b",
    "request": r"[\s_-]?limit",
    "requests": rf" per {_TIME}",
    "quota": rf"\b.{{0,80}}\bper[\s_-]?{_TIME}",
    "throttl": r"",
    "retry": r"[\s_-]after",
    "try": r"(?:ing)? again (?:later|soon|shortly|in (?:an? |\d))",
    # overload
    "overloaded": _NO_FUNCTION,
    "service": _NOT_READY,
    "server": rf"{_NOT_READY}| error,? please (?:re)?try",
    "internal": r"[\s_-]?server[\s_-]?error",
    "model": _NOT_READY,
    "backend": _NOT_READY,
    "upstream": rf"{_NOT_READY}| connect error",
    "database": r"(?: \w+)? is locked",
    "acquire": r"(?: \w+)? lock\b",
    "currently": _NOT_READY,
    "temporarily": _NOT_READY,
    "temporary": r"[\s_]failure",
    "bad": r"[\s_-]?gateway",
    "gateway": r"[\s_-]?time-?out",
    "resource": r"[\s_]?exhausted",
    "eof": r" occurred in violation",
    # time
    "timed": r"[\s_-]?out",
    "timeout": _NO_NAME,
    "time-out": _NO_NAME,
    "deadline": r"[\s_]?exceeded",
    "etimedout": r"",
    # connections
    "connection": r"[\s_-]?(?:was |is |has been )?"
                  r"(?:reset|refused|aborted|closed|lost|dropped|error|timeout)",
    "econnreset": r"",
    "econnrefused": r"",
    "econnaborted": r"",
    "epipe": r"\b",
    "broken": r"[\s_]?pipe",
    "network": r" (?:is )?(?:unreachable|down|error)",
    "eai_again": r"",
    "socket": r" hang ?up",
    # a code, by what names it
    "http": rf"s?(?:/\d(?:\.\d)?)?{_CODE_OF}",
    "status": _CODE_OF,
    "error": _CODE_OF,
    "code": _CODE_OF,
}
# A code at the very beginning, unless it counts something.
TRANSIENT_START = rf"[ \t\r\n(\[{{<#:'\"*]*{_CODE}(?=\s*(?:\Z|[^\s\w]|\n))"

# A short acknowledgement consists of these words, at least one of them of the first kind, and of
# few others, which name what was worked on.
DONE = frozenset(_words("""
    ok okay done success successful successfully succeeded true ack acknowledged
    complete completed finished saved stored written wrote moved renamed copied created added
    inserted updated edited changed modified replaced replacement replacements appended applied
    deleted removed cleared installed uploaded submitted sent posted committed pushed merged
    enabled disabled registered scheduled booked confirmed logged recorded noted tracked fixed
    patched queued accepted archived assigned published resolved
    listo hecho éxito exitosamente guardado completado creado actualizado eliminado enviado
    fertig erledigt erfolg erfolgreich gespeichert abgeschlossen erstellt aktualisiert gelöscht
    terminé terminée fait réussi succès enregistré enregistrée créé supprimé
    pronto feito concluído salvo sucesso fatto completato salvato successo
    готово выполнено сделано успешно сохранено сохранён завершено создано обновлено удалено
"""))
# English verbs that say so too: other words of five letters or more that end in -ed, but for these.
PARTICIPLES_NOT = frozenset(_words("""
    passed based related unrelated named needed used supposed limited detailed interested indeed
    speed exceed proceed succeed agreed hundred embed estimated observed measured
"""))
# In scripts that do not part words: anywhere in one.
DONE_PARTS = tuple(_words("""
    成功 完成 完了 已保存 已更新 已创建 已删除 已写入 已修改 已添加 已发送 保存しました 更新しました
    作成しました 削除しました 완료 성공 저장됨 저장했습니다
"""))
BESIDE = frozenset(_words("""
    the a an all has have been was were is are it its this that now with to in into at for from of
    and your you file files row rows line lines record records item items entry entries change
    changes byte bytes character characters document table note message messages task tasks command
    thought thoughts plan plans todo todos memory query sec second seconds ms checks
    operation request action process edit status result message msg code exit data response output
    el la los archivo cambios die der das datei wurde le les fichier été a été файл изменения
    set execution executed ran wurden fue ha sido con
"""))
# One of these, and it is no acknowledgement: it says no, of nothing, not yet, if, or asks.
NOT_DONE = frozenset(_words("""
    no not nothing none never nor without cannot cant can't couldn't didn't doesn't don't isn't
    wasn't won't wouldn't hasn't haven't unable already unchanged same skipped ignored pending
    but however except only still instead although unless until if whether would will should must
    may might can could please need needs want wants expected partially almost nearly half
    fail fails failed failing failure failures error errors warning warnings exception traceback
    invalid unknown missing denied declined refused rejected aborted cancelled canceled timeout
    blocked locked crashed killed exceeded expired disconnected unsupported deprecated corrupted
    restricted prohibited forbidden disallowed interrupted unexpected truncated unauthorized
    unauthenticated throttled dropped overloaded undetected unreached exhausted
    unsuccessful unsuccessfully incomplete incorrect wrong false null undefined nan empty
    what which who where why how found
    sin nada ningún ninguna fallo nicht kein keine nichts ohne fehler fehlgeschlagen
    pas aucun aucune rien sans échec erreur não nenhum nada falha erro non nessun niente errore
    не нет без ничего ошибка уже нельзя
"""))
NOT_DONE_PARTS = tuple(_words("""
    未 不 没 無 无 非 否 别 失败 失敗 错误 錯誤 ません なし エラー 없 않 실패 오류 못
"""))
# Left out first: silence, where something says that it was a success.
SILENCE = (
    r"\(?\b(?:and )?(?:did not produce any|produced no|with no|without any|without|no) output\b\)?"
)
# What says that a command or a request went well, in numbers.
ZERO = (
    r"\b(?:without|with no|no|0) (?:any )?(?:errors?|issues?|warnings?|problems?)"
    r"(?: (?:were )?found)?\b|"
    r"\bexit(?:ed)?(?: with)?(?: status| code)?:? 0\b"
    r"|\"(?:code|errno|err|errors?|status|exit_?code)\":\s*(?:0|null|\"\")(?=[,}\s])"
)
NULLS = r"\"\w+\":\s*null\b"
SHORT = 120         # characters of an acknowledgement at most, or of its first sentence
LONG = 300          # characters of a line that begins with one
NAMES = 2           # words beside those above that it may have; in JSON, none
NUMBERS = 2         # numbers that it may have, above 0

# Silence is work done if a word of the tool's name is one of these,
CHANGES = frozenset(_words("""
    write edit create delete remove move rename copy mkdir update set put post insert append save
    send click type press scroll drag hover navigate goto close start stop apply patch replace
    upload submit add assign install commit push reply notify sleep wait enable disable clear reset
"""))
# or if a shell command begins with one of these, behind changes of directory, or writes to a file.
COMMANDS = frozenset(_words("""
    mkdir mv cp rm rmdir touch chmod chown ln cd export source unset alias sleep wait kill tar unzip
    gunzip gzip zip pip pip3 npm apt apt-get make cmake tee truncate dd sync mount umount systemctl
    useradd usermod git sed insert update delete create drop alter truncate use begin commit
"""))
COMMAND_KEYS = ("command", "cmd", "script", "query", "sql", "code", "input")
COMMAND = r"\s*(?:cd [^&|;]*(?:&&|;)\s*)?(?:sudo )?([\w-]+)"
# The name of a file behind a >, and then no more of this command; no arrow and no comparison.
WRITES = (
    r"(?<![0-9&>=<-])>>?[ \t]*(?!/dev/null)"
    r"(?:'[^']+'|\"[^\"]+\"|(?=[^\s;&|()'\"<>]*[A-Za-z/~$])[^\s;&|()'\"<>]+)[ \t]*"
    r"(?:\Z|[;&|\n]|[0-9]>)"
)
