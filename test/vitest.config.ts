import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';
import { VITEST_TIERS } from './support/tiers.ts';

export default defineConfig({
  root: fileURLToPath(new URL('..', import.meta.url)),
  test: {
    projects: VITEST_TIERS.map((tier) => ({
      test: {
        name: tier.name,
        include: [`test/${tier.name}/**/*.test.ts`],
        testTimeout: tier.testMsMax,
        hookTimeout: tier.hookMsMax,
        maxWorkers: tier.workersMax,
        globalSetup: tier.globalSetup === undefined ? [] : [tier.globalSetup],
        allowOnly: false,
      },
    })),
  },
});
