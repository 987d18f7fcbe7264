package org.apache.kafka.common.test.junit;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.common.test.ClusterInstance;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;

/**
 * Hands Kafka's tests their cluster with a gateway in front of it.
 *
 * <p>It has the name of the class by which Kafka's test extension injects the cluster, and comes before it on the class
 * path. The cluster that it hands out answers {@code bootstrapServers()} with the addresses of a gateway, which it starts
 * when it is asked for the first time: the command in the system property {@code gateway.command} (words split by the
 * unit separator), with the cluster's own addresses as its last argument. The command prints {@code ready ADDRESSES} once
 * clients may connect, and ends when its input does. Everything else is the cluster's own; its default methods are
 * invoked on the proxy, so that the clients they make use the gateway too.
 */
public class ClusterInstanceParameterResolver implements ParameterResolver {
    private static final Object LOCK = new Object();
    private static Gateway latest;

    private final ClusterInstance cluster;

    ClusterInstanceParameterResolver(ClusterInstance cluster) {
        this.cluster = cluster;
    }

    @Override
    public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
        return parameter.getParameter().getType() == ClusterInstance.class;
    }

    @Override
    public Object resolveParameter(ParameterContext parameter, ExtensionContext context) {
        InvocationHandler handler = (proxy, method, arguments) -> invoke(cluster, proxy, method, arguments);
        Class<?>[] interfaces = {ClusterInstance.class};
        return Proxy.newProxyInstance(ClusterInstance.class.getClassLoader(), interfaces, handler);
    }

    private static Object invoke(ClusterInstance cluster, Object proxy, Method method, Object[] arguments)
            throws Throwable {
        if (method.getName().equals("bootstrapServers")) {
            return gatewayOf(cluster);
        }
        if (method.isDefault()) {
            return InvocationHandler.invokeDefault(proxy, method, arguments);
        }
        try {
            return method.invoke(cluster, arguments);
        } catch (InvocationTargetException wrapped) {
            throw wrapped.getCause();
        }
    }

    private static String gatewayOf(ClusterInstance cluster) {
        synchronized (LOCK) {
            if (latest == null || latest.cluster != cluster) {
                // A gateway of the test before would answer for a cluster that is gone.
                if (latest != null) {
                    latest.end();
                }
                latest = new Gateway(cluster);
            }
            return latest.addresses;
        }
    }

    /** The process in front of one cluster. */
    private static final class Gateway {
        final ClusterInstance cluster;
        final String addresses;
        private final Process process;

        Gateway(ClusterInstance cluster) {
            this.cluster = cluster;
            List<String> command = new ArrayList<>(List.of(System.getProperty("gateway.command").split("\u001f")));
            command.add(cluster.bootstrapServers());
            ProcessBuilder builder = new ProcessBuilder(command);
            builder.directory(Path.of(System.getProperty("gateway.directory")).toFile());
            builder.redirectError(ProcessBuilder.Redirect.INHERIT);
            try {
                process = builder.start();
                addresses = firstAddresses();
            } catch (IOException failure) {
                throw new UncheckedIOException(failure);
            }
        }

        private String firstAddresses() throws IOException {
            BufferedReader output = new BufferedReader(new InputStreamReader(process.getInputStream()));
            for (String line = output.readLine(); line != null; line = output.readLine()) {
                if (line.startsWith("ready ")) {
                    return line.substring("ready ".length()).trim();
                }
            }
            throw new IOException("the gateway ended before it was ready");
        }

        void end() {
            try {
                process.getOutputStream().close();
                if (!process.waitFor(10, TimeUnit.SECONDS)) {
                    process.destroyForcibly();
                }
            } catch (IOException | InterruptedException failure) {
                process.destroyForcibly();
            }
        }
    }
}
