import { isBuiltin } from 'node:module';
import { expect, test } from 'vitest';
import { COMMAND_NAMES } from '../../src/cli/command-names.ts';
import { buildPrograms, runOnUse } from '../support/bundles.ts';
import { readCommands } from '../support/surface/commands.ts';

test('every command has a name by which it is found', async () => {
  expect(COMMAND_NAMES).toEqual((await readCommands()).map(({ name }) => name));
});

test('a program is one file of plain letters, and loads nothing but itself and what is native', async () => {
  const { files, metafiles } = await buildPrograms();
  for (const { path, text } of files) expect(/[^\0-\x7f]/.exec(text)?.[0], path).toBeUndefined();
  const outputs = metafiles.flatMap((metafile) => Object.values(metafile.outputs));
  const imports = outputs.flatMap((output) => output.imports.map(({ path }) => path));
  const others = imports.filter((path) => !isBuiltin(path));
  expect([...new Set(others)].sort()).toEqual(['koffi']);
}, 120_000);

test('a module runs when it is used, and one that is used as a whole at once', () => {
  const text = [
    'var import_fs = require("node:fs");',
    'var import_os = __toESM(require("node:os"), 1);',
    'const parse_1 = require("./parse");',
    'var whole = require("whole");',
    'new parse_1.Parser((0, import_fs.read)(import_os.default.arch), whole, whole.name, x.parse_1.y, ...import_fs.all);',
  ];
  expect(runOnUse(text.join('\n')).split('\n')).toEqual([
    'var import_fs = __onUse(() => require("node:fs"));',
    'var import_os = __onUse(() => __toESM(require("node:os"), 1));',
    'var parse_1 = __onUse(() => require("./parse"));',
    'var whole = require("whole");',
    'new parse_1.module.Parser((0, import_fs.module.read)(import_os.module.default.arch), whole, whole.name, x.parse_1.y, ...import_fs.module.all);',
  ]);
});
