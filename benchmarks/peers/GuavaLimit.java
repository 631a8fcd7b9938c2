// SPDX-License-Identifier: MIT

// Peer: Guava's RateLimiter. Driven as serve.h says.
import com.google.common.util.concurrent.RateLimiter;
import java.util.Scanner;

public final class GuavaLimit {
    private static final class Share extends Thread {
        private final RateLimiter limiter;
        private final long ops;
        long allowed;

        Share(RateLimiter limiter, long ops) {
            this.limiter = limiter;
            this.ops = ops;
        }

        @Override
        public void run() {
            long n = 0;
            for (long i = 0; i < ops; i++) {
                if (limiter.tryAcquire()) {
                    n++;
                }
            }
            allowed = n;
        }
    }

    // It saves up one second of permits and has no other burst: so never empty means a rate that no loop reaches.
    public static void main(String[] args) throws InterruptedException {
        RateLimiter limiter = RateLimiter.create(1e12);
        for (int i = 0; i < 20; i++) {
            new Share(limiter, 100000).run();
        }
        System.out.println("ready Guava RateLimiter");
        Scanner input = new Scanner(System.in);
        while (input.hasNextInt()) {
            int threads = input.nextInt();
            long ops = input.nextLong();
            Share[] shares = new Share[threads];
            for (int i = 0; i < threads; i++) {
                shares[i] = new Share(limiter, ops);
                if (i > 0) {
                    shares[i].start();
                }
            }
            shares[0].run();
            long allowed = shares[0].allowed;
            for (int i = 1; i < threads; i++) {
                shares[i].join();
                allowed += shares[i].allowed;
            }
            System.out.println(allowed);
        }
    }
}
